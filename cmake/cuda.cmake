# The kernels of the CUDA set. Their sources are part of every installation: without images that fit, NVRTC compiles them at
# first use. With nvcc each .cu becomes one fatbin, its architectures compiled side by side; nothing else of the toolkit is needed.
set(HYBRIDKERN_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO (when nvcc is found), ON (an error without nvcc), OFF")
set_property(CACHE HYBRIDKERN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HYBRIDKERN_CUDA_ARCHITECTURES "75;90a" CACHE STRING
  "Compute capabilities that get machine code; release: all from Turing to Blackwell")
set(HYBRIDKERN_CUDA_PTX "80" CACHE STRING "Compute capability of the PTX that the driver compiles for other GPUs, or empty")

set(HK_CUDA_FOLDER ${CMAKE_CURRENT_LIST_DIR}/../csrc)
file(GLOB HK_CUDA_HEADERS CONFIGURE_DEPENDS
  ${HK_CUDA_FOLDER}/cuda/*.cuh ${HK_CUDA_FOLDER}/cuda/*.h ${HK_CUDA_FOLDER}/formats/*.def)
file(GLOB HK_CUDA_SOURCES CONFIGURE_DEPENDS ${HK_CUDA_FOLDER}/cuda/*.cu)
install(DIRECTORY ${HK_CUDA_FOLDER}/cuda ${HK_CUDA_FOLDER}/formats DESTINATION hybridkern/kernels/cuda/csrc
  FILES_MATCHING PATTERN "*.cu" PATTERN "*.cuh" PATTERN "*.h" PATTERN "*.def")

string(TOUPPER "${HYBRIDKERN_CUDA}" HK_CUDA)
if(NOT HK_CUDA MATCHES "^(OFF|ON|AUTO)$")
  message(FATAL_ERROR "HYBRIDKERN_CUDA is ${HYBRIDKERN_CUDA}; it can be OFF, ON or AUTO")
endif()
if(HK_CUDA STREQUAL OFF)
  return()
endif()

find_program(HK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(NOT HK_NVCC)
  if(HK_CUDA STREQUAL ON)
    message(FATAL_ERROR "HYBRIDKERN_CUDA is ON, but nvcc was not found: set CUDA_HOME, or turn it OFF")
  endif()
  message(STATUS "CUDA kernels: not compiled, nvcc was not found")
  return()
endif()
# nvcc may be a script or a link: its neighbours are where it says that it is.
execute_process(COMMAND ${HK_NVCC} -dryrun -cubin -x cu /dev/null ERROR_VARIABLE HK_DRYRUN OUTPUT_QUIET)
string(REGEX MATCH "_HERE_=([^\r\n]+)" HK_DRYRUN "${HK_DRYRUN}")
find_program(HK_FATBINARY fatbinary HINTS "${CMAKE_MATCH_1}" /usr/local/cuda/bin REQUIRED)

set(HK_CUDA_ARCHITECTURES ${HYBRIDKERN_CUDA_ARCHITECTURES})
if(HK_CUDA_ARCHITECTURES STREQUAL release)
  set(HK_CUDA_ARCHITECTURES 75 80 86 89 90a 100 120)
endif()
message(STATUS "CUDA kernels: ${HK_NVCC}, sm ${HK_CUDA_ARCHITECTURES}, PTX ${HYBRIDKERN_CUDA_PTX}")
if(NOT HK_CUDA_ARCHITECTURES AND NOT HYBRIDKERN_CUDA_PTX)
  message(FATAL_ERROR "HYBRIDKERN_CUDA_ARCHITECTURES and HYBRIDKERN_CUDA_PTX are both empty")
endif()

# hk_cuda_object(OUT NAME SOURCE KIND ARCH): one source for one architecture, with a report of what its kernels use.
set(HK_CUDA_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/cuda_kernels.py)
function(hk_cuda_object source kind arch suffix)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.${arch}.${suffix})
  add_custom_command(
    OUTPUT ${object} ${object}.json
    COMMAND ${Python_EXECUTABLE} ${HK_CUDA_SCRIPT} compile ${HK_NVCC} ${kind}_${arch} ${source} ${object}
    DEPENDS ${source} ${HK_CUDA_HEADERS} ${HK_CUDA_SCRIPT}
    COMMENT "CUDA kernels: ${name} for ${kind}_${arch}"
    VERBATIM)
  set(HK_OBJECT ${object} PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)
set(HK_FATBINS "")
set(HK_REPORTS "")
foreach(source IN LISTS HK_CUDA_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  set(objects "")
  set(parts "")
  foreach(arch IN LISTS HK_CUDA_ARCHITECTURES)
    hk_cuda_object(${source} sm ${arch} cubin)
    list(APPEND objects ${HK_OBJECT})
    list(APPEND parts --image3=kind=elf,sm=${arch},file=${HK_OBJECT})
    list(APPEND HK_REPORTS ${HK_OBJECT}.json)
  endforeach()
  foreach(arch IN LISTS HYBRIDKERN_CUDA_PTX)
    hk_cuda_object(${source} compute ${arch} ptx)
    list(APPEND objects ${HK_OBJECT})
    list(APPEND parts --image3=kind=ptx,sm=${arch},file=${HK_OBJECT})
    list(APPEND HK_REPORTS ${HK_OBJECT}.json)
  endforeach()
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.fatbin)
  add_custom_command(OUTPUT ${fatbin} COMMAND ${HK_FATBINARY} --create=${fatbin} -64 ${parts} DEPENDS ${objects} VERBATIM)
  list(APPEND HK_FATBINS ${fatbin})
endforeach()
set(HK_CUDA_MANIFEST ${CMAKE_CURRENT_BINARY_DIR}/cuda/images.json)
add_custom_command(
  OUTPUT ${HK_CUDA_MANIFEST}
  COMMAND ${Python_EXECUTABLE} ${HK_CUDA_SCRIPT} collect ${HK_NVCC} ${HK_CUDA_MANIFEST} ${HK_REPORTS}
  DEPENDS ${HK_REPORTS} ${HK_CUDA_SCRIPT}
  COMMENT "CUDA kernels: registers and spills"
  VERBATIM)
add_custom_target(hk_cuda_kernels ALL DEPENDS ${HK_FATBINS} ${HK_CUDA_MANIFEST})
install(FILES ${HK_FATBINS} ${HK_CUDA_MANIFEST} DESTINATION hybridkern/kernels/cuda)
