/* How far each format's search goes, in codes beyond the scale that just spans the block.
 *
 * Symmetric formats: scales inward and outward, and the step between them; affine ones: the same for both ends; blocks
 * of 256 add how far the extreme sub-block scale is from the end of its range, and the step of that. */
#ifndef HK_GRIDS_H
#define HK_GRIDS_H

#ifndef HK_GRID_Q4_0
#define HK_GRID_Q4_0   8, 8, 0.125f
#define HK_GRID_Q5_0   8, 8, 0.125f
#define HK_GRID_Q4_1   2, 2, 0.4f
#define HK_GRID_Q5_1   2, 2, 0.4f
#define HK_GRID_IQ4    7, 0.01f
#define HK_GRID_Q2_K   2, 2, 0.25f, 3.0f, 0.25f
#define HK_GRID_Q3_K   8, 8, 0.125f, 4.0f, 0.25f
#define HK_GRID_Q4_K   2, 2, 0.4f, 4.0f, 0.5f
#define HK_GRID_Q5_K   2, 2, 0.4f, 4.0f, 0.5f
#define HK_GRID_Q6_K   6, 6, 0.15f, 4.0f, 0.5f
#define HK_GRID_IQ4_XS 7, 0, 0.01f, 4.0f, 0.25f
#endif

#endif
