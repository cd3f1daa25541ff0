# Finds LibTorch and makes targets of our own for it.
#
#   find_package(LibTorch 2.11...<2.12 REQUIRED)
#
#   LibTorch::c10, LibTorch::cpu   always; linking them does not load LibTorch's CUDA half
#   LibTorch::cuda                 when this LibTorch has one and the CUDA runtime's headers are there (no nvcc needed)
#   LibTorch::nccl                 when nccl.h is there as well
#   LibTorch_FOLDER, LibTorch_VERSION, and LibTorch_NO_CUDA / LibTorch_NO_NCCL: why a target is missing
#   LibTorch_CUDA_VERSION          of the CUDA for which it was built ("13.0"); empty: not known, or without CUDA
#
# Looked for, first match wins: LOCKSTEP_LIBTORCH (CMake variable, then environment; if set nothing else is considered), what an
# earlier run found, CMAKE_PREFIX_PATH, LibTorch_HINTS, the torch of python3, and the one that cmake/setup.sh fetches. Each is the
# folder of an unpacked LibTorch or of the Python package torch (.../site-packages/torch).
#
# Why not find_package(Torch): with a CUDA build of LibTorch it demands nvcc and a matching toolkit even of programs that use no GPU,
# and its target links libtorch_cuda, which costs every process time and memory. Its target names differ from these, so that a
# project may use both.

include(FindPackageHandleStandardArgs)

function(_libtorch_version folder result)
  set(${result} "" PARENT_SCOPE)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h torch/version.h)
    if(EXISTS "${folder}/include/${header}" AND EXISTS "${folder}/lib/libtorch_cpu.so")
      file(STRINGS "${folder}/include/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      list(TRANSFORM lines REPLACE ".* " "")
      list(JOIN lines "." version)
      set(${result} "${version}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Takes the first of the given folders that has a fitting version; says in LibTorch_SEEN which were not taken.
function(_libtorch_choose)
  set(seen "${LibTorch_SEEN}")
  foreach(folder IN LISTS ARGN)
    get_filename_component(folder "${folder}" REALPATH)
    _libtorch_version("${folder}" version)
    if(version MATCHES "^2\\.11\\.")
      set(LibTorch_FOLDER "${folder}" CACHE INTERNAL "Folder of LibTorch")
      set(LibTorch_VERSION "${version}" PARENT_SCOPE)
      return()
    elseif(version)
      list(APPEND seen "${folder} is ${version}")
    endif()
  endforeach()
  set(LibTorch_SEEN "${seen}" PARENT_SCOPE)
endfunction()

function(_libtorch_search)
  if(NOT LOCKSTEP_LIBTORCH AND DEFINED ENV{LOCKSTEP_LIBTORCH})
    set(LOCKSTEP_LIBTORCH "$ENV{LOCKSTEP_LIBTORCH}")
  endif()
  if(LOCKSTEP_LIBTORCH)
    set(LibTorch_FOLDER "" CACHE INTERNAL "Folder of LibTorch")
    _libtorch_choose("${LOCKSTEP_LIBTORCH}")
    if(NOT LibTorch_VERSION AND NOT LibTorch_SEEN)
      set(LibTorch_SEEN "LOCKSTEP_LIBTORCH=${LOCKSTEP_LIBTORCH} has no include/ and lib/libtorch_cpu.so of LibTorch")
    endif()
  else()
    file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
    list(PREPEND prefixes ${CMAKE_PREFIX_PATH})
    list(TRANSFORM prefixes REPLACE "/share/cmake/?$" "")  # what torch.utils.cmake_prefix_path gives
    _libtorch_choose(${LibTorch_FOLDER} ${prefixes} ${LibTorch_HINTS})
    if(NOT LibTorch_VERSION)
      execute_process(
        COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      set(cache "$ENV{XDG_CACHE_HOME}")
      if(NOT cache)
        set(cache "$ENV{HOME}/.cache")
      endif()
      file(GLOB fetched "${cache}/lockstep/libtorch-2.11.0/lib/python3*/site-packages/torch")
      _libtorch_choose(${folder} ${fetched})
    endif()
  endif()
  set(LibTorch_VERSION "${LibTorch_VERSION}" PARENT_SCOPE)
  set(LibTorch_SEEN "${LibTorch_SEEN}" PARENT_SCOPE)
endfunction()

set(LibTorch_VERSION "")
set(LibTorch_SEEN "")
_libtorch_search()
set(_libtorch_reason "LibTorch 2.11 was not found. Set LOCKSTEP_LIBTORCH to the folder of an unpacked LibTorch or of the Python")
string(APPEND _libtorch_reason " package torch (.../site-packages/torch), or run cmake/setup.sh of lockstep's sources, which fetches one")
if(LibTorch_HINTS)
  string(APPEND _libtorch_reason " (not found in ${LibTorch_HINTS})")
endif()
if(LibTorch_SEEN)
  string(APPEND _libtorch_reason " (not taken: ${LibTorch_SEEN})")
endif()
string(REPLACE ";" ", " _libtorch_reason "${_libtorch_reason}")  # a semicolon would begin another argument
if(NOT LibTorch_VERSION)
  set(LibTorch_FOLDER "" CACHE INTERNAL "Folder of LibTorch")
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_FOLDER VERSION_VAR LibTorch_VERSION HANDLE_VERSION_RANGE REASON_FAILURE_MESSAGE "${_libtorch_reason}")
set(LibTorch_CUDA_VERSION "")
foreach(_libtorch_file build-version version.py)
  if(EXISTS "${LibTorch_FOLDER}/${_libtorch_file}")
    file(STRINGS "${LibTorch_FOLDER}/${_libtorch_file}" _libtorch_line REGEX "\\+cu[0-9]+" LIMIT_COUNT 1)
    if(_libtorch_line MATCHES "\\+cu([0-9]+)([0-9])")
      set(LibTorch_CUDA_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    endif()
  endif()
endforeach()
if(NOT LibTorch_FOUND OR TARGET LibTorch::cpu)
  return()
endif()

# GLOBAL: a project that adds ours as a subfolder links them too.
function(_libtorch_target name library)
  add_library(LibTorch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${LibTorch_FOLDER}/lib/${library}")
endfunction()

_libtorch_target(c10 libc10.so)
target_include_directories(LibTorch::c10 INTERFACE "${LibTorch_FOLDER}/include")

_libtorch_target(cpu libtorch_cpu.so)
target_include_directories(LibTorch::cpu INTERFACE "${LibTorch_FOLDER}/include/torch/csrc/api/include")
target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# LibTorch finds its own CUDA libraries at run time by its run path; the linker need not.
target_link_options(LibTorch::cpu INTERFACE LINKER:--allow-shlib-undefined)
target_link_libraries(LibTorch::cpu INTERFACE LibTorch::c10)

set(LibTorch_NO_CUDA "")
set(LibTorch_NO_NCCL "")
if(NOT EXISTS "${LibTorch_FOLDER}/lib/libtorch_cuda.so")
  set(LibTorch_NO_CUDA "${LibTorch_FOLDER} is a LibTorch without CUDA")
  set(LibTorch_NO_NCCL "${LibTorch_NO_CUDA}")
  return()
endif()

# Headers that came with this LibTorch fit it and come first; those of a toolkit must have its CUDA's major version.
get_filename_component(_libtorch_site "${LibTorch_FOLDER}/../nvidia" ABSOLUTE)
file(GLOB _libtorch_cuda_hints "${_libtorch_site}/cu[0-9]*" "${_libtorch_site}/cuda_runtime")
find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h
  HINTS ${_libtorch_cuda_hints} ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include NO_CACHE)
find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h
  HINTS "${_libtorch_site}/nccl" ENV NCCL_HOME ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include NO_CACHE)

string(REGEX REPLACE "\\..*" "" _libtorch_built_for "${LibTorch_CUDA_VERSION}")
if(NOT LibTorch_CUDA_INCLUDE_DIR)
  set(LibTorch_NO_CUDA "cuda_runtime_api.h was not found beside ${LibTorch_FOLDER} or in a CUDA toolkit (set CUDA_HOME)")
else()
  file(STRINGS "${LibTorch_CUDA_INCLUDE_DIR}/cuda_runtime_api.h" _libtorch_line
    REGEX "^#define CUDART_VERSION +[0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE ".* ([0-9]+)[0-9][0-9][0-9]$" "\\1" _libtorch_major "${_libtorch_line}")
  if(_libtorch_built_for AND NOT _libtorch_major STREQUAL _libtorch_built_for)
    set(LibTorch_NO_CUDA "${LibTorch_FOLDER} was built for CUDA ${_libtorch_built_for}, found headers of CUDA ${_libtorch_major} \
in ${LibTorch_CUDA_INCLUDE_DIR} (set CUDA_HOME)")
  endif()
  # CUDA's headers include these, which NVIDIA's wheels have in wheels of their own that torch does not require.
  foreach(_libtorch_header crt/host_config.h nv/target)
    string(MAKE_C_IDENTIFIER "LibTorch_${_libtorch_header}_DIR" _libtorch_dir)
    find_path(${_libtorch_dir} ${_libtorch_header}
      HINTS "${LibTorch_CUDA_INCLUDE_DIR}" ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include NO_CACHE)
    if(${_libtorch_dir})
      list(APPEND _libtorch_cuda_includes "${${_libtorch_dir}}")
    elseif(NOT LibTorch_NO_CUDA)
      set(LibTorch_NO_CUDA "${_libtorch_header} was not found in ${LibTorch_CUDA_INCLUDE_DIR} or in a CUDA toolkit (pip install \
'nvidia-cuda-crt==${LibTorch_CUDA_VERSION}.*' 'nvidia-cuda-cccl==${LibTorch_CUDA_VERSION}.*' where torch was installed, or set CUDA_HOME)")
    endif()
  endforeach()
endif()
if(LibTorch_NO_CUDA)
  set(LibTorch_NO_NCCL "${LibTorch_NO_CUDA}")
  return()
endif()

# The runtime and NCCL that LibTorch itself loads, never another copy of a toolkit's. Where none lies beside it, they are inside it.
function(_libtorch_link_own target)
  file(GLOB libraries ${ARGN})
  if(libraries)
    list(GET libraries 0 library)
    target_link_libraries(${target} INTERFACE "${library}")
  endif()
endfunction()

_libtorch_target(c10_cuda libc10_cuda.so)
target_include_directories(LibTorch::c10_cuda INTERFACE "${LibTorch_CUDA_INCLUDE_DIR}" ${_libtorch_cuda_includes})
target_link_libraries(LibTorch::c10_cuda INTERFACE LibTorch::c10)

_libtorch_target(cuda libtorch_cuda.so)
target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu LibTorch::c10_cuda)
_libtorch_link_own(LibTorch::cuda "${_libtorch_site}/cu[0-9]*/lib/libcudart.so.*" "${_libtorch_site}/cuda_runtime/lib/libcudart.so.*"
  "${LibTorch_FOLDER}/lib/libcudart*.so*")

if(LibTorch_NCCL_INCLUDE_DIR)
  add_library(LibTorch::nccl INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::nccl INTERFACE "${LibTorch_NCCL_INCLUDE_DIR}")
  target_compile_definitions(LibTorch::nccl INTERFACE USE_C10D_NCCL)
  target_link_libraries(LibTorch::nccl INTERFACE LibTorch::cuda)
  _libtorch_link_own(LibTorch::nccl "${_libtorch_site}/nccl/lib/libnccl.so.*" "${LibTorch_FOLDER}/lib/libnccl*.so*")
else()
  set(LibTorch_NO_NCCL "nccl.h was not found beside ${LibTorch_FOLDER} or in a CUDA toolkit (set NCCL_HOME)")
endif()
