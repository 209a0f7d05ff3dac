# The kernels of the CUDA set: one fatbin per .cu, which needs nvcc and nothing else of the toolkit. Off by default: the engine cannot use the set yet, so it is built by those who work on it.
set(HYBRIDKERN_CUDA OFF CACHE STRING "Build the CUDA kernel set: OFF, ON (an error without nvcc), AUTO (when nvcc is found)")
set_property(CACHE HYBRIDKERN_CUDA PROPERTY STRINGS OFF ON AUTO)
set(HYBRIDKERN_CUDA_ARCHITECTURES "75;90a" CACHE STRING "Compute capabilities that get machine code")
set(HYBRIDKERN_CUDA_PTX "90" CACHE STRING "Compute capability of the PTX that newer GPUs compile, or empty")

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
  message(STATUS "CUDA kernel set: not built, nvcc was not found")
  return()
endif()
message(STATUS "CUDA kernel set: ${HK_NVCC}, sm ${HYBRIDKERN_CUDA_ARCHITECTURES}, PTX ${HYBRIDKERN_CUDA_PTX}")

set(HK_CUDA_CODE "")
foreach(arch IN LISTS HYBRIDKERN_CUDA_ARCHITECTURES)
  list(APPEND HK_CUDA_CODE "-gencode=arch=compute_${arch},code=sm_${arch}")
endforeach()
foreach(arch IN LISTS HYBRIDKERN_CUDA_PTX)
  list(APPEND HK_CUDA_CODE "-gencode=arch=compute_${arch},code=compute_${arch}")
endforeach()
if(NOT HK_CUDA_CODE)
  message(FATAL_ERROR "HYBRIDKERN_CUDA_ARCHITECTURES and HYBRIDKERN_CUDA_PTX are both empty")
endif()

set(HK_CUDA_FOLDER ${CMAKE_CURRENT_LIST_DIR}/../csrc)
file(GLOB HK_CUDA_HEADERS CONFIGURE_DEPENDS
  ${HK_CUDA_FOLDER}/cuda/*.cuh ${HK_CUDA_FOLDER}/cuda/*.h ${HK_CUDA_FOLDER}/formats/*.def)
file(GLOB HK_CUDA_SOURCES CONFIGURE_DEPENDS ${HK_CUDA_FOLDER}/cuda/*.cu)
set(HK_FATBINS "")
foreach(source IN LISTS HK_CUDA_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND ${HK_NVCC} -fatbin -std=c++17 -diag-suppress 177 ${HK_CUDA_CODE} -o ${fatbin} ${source}
    DEPENDS ${source} ${HK_CUDA_HEADERS}
    COMMENT "CUDA kernels: ${name}"
    VERBATIM)
  list(APPEND HK_FATBINS ${fatbin})
endforeach()
add_custom_target(hk_cuda_kernels ALL DEPENDS ${HK_FATBINS})
install(FILES ${HK_FATBINS} DESTINATION hybridkern/kernels/cuda)
