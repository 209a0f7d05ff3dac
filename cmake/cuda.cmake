# CUDA: the driver shim needs no toolkit; the kernels need nvcc, and nothing else of it. Each .cu becomes one fatbin.
add_library(hk_cuda_driver SHARED ${CMAKE_CURRENT_LIST_DIR}/../csrc/runtime/hk_cuda_driver.c)
target_link_libraries(hk_cuda_driver PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS hk_cuda_driver LIBRARY DESTINATION hybridkern/kernels/cuda)

set(HYBRIDKERN_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO (when nvcc is found), ON, OFF")
set(HYBRIDKERN_CUDA_ARCHITECTURES "75;90a" CACHE STRING "Compute capabilities that get machine code")
set(HYBRIDKERN_CUDA_PTX "90" CACHE STRING "Compute capability of the PTX that newer GPUs compile, or empty")
if(NOT HYBRIDKERN_CUDA STREQUAL OFF)
  find_program(HK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(NOT HK_NVCC AND HYBRIDKERN_CUDA STREQUAL ON)
    message(FATAL_ERROR "HYBRIDKERN_CUDA is ON, but nvcc was not found: set CUDA_HOME, or turn it OFF")
  endif()
endif()
file(GLOB HK_CUDA_HEADERS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../csrc/cuda/*.cuh ${CMAKE_CURRENT_LIST_DIR}/../csrc/cuda/*.h ${CMAKE_CURRENT_LIST_DIR}/../csrc/formats/*.def)
file(GLOB HK_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../csrc/cuda/*.cu)
if(HK_NVCC)
  set(HK_CUDA_CODE "")
  foreach(arch IN LISTS HYBRIDKERN_CUDA_ARCHITECTURES)
    list(APPEND HK_CUDA_CODE "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  foreach(arch IN LISTS HYBRIDKERN_CUDA_PTX)
    list(APPEND HK_CUDA_CODE "-gencode=arch=compute_${arch},code=compute_${arch}")
  endforeach()
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
endif()
# For compilation at run time, where there was no nvcc.
install(FILES ${HK_CUDA_HEADERS} ${HK_CUDA_SOURCES} DESTINATION hybridkern/kernels/cuda/source)
