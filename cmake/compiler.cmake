# One place for the standard, optimisation, warnings and sanitizers of our own code. Links as lockstep_flags.
set(CMAKE_CXX_EXTENSIONS OFF)
add_library(lockstep_flags INTERFACE)
target_compile_features(lockstep_flags INTERFACE cxx_std_20)
target_compile_options(lockstep_flags INTERFACE
  $<$<CONFIG:Release>:-O2>  # the arithmetic is LibTorch's: -O3 would only add size
  -fvisibility-inlines-hidden
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wold-style-cast -Wcast-qual -Wformat=2 -Wextra-semi
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond;-Wlogical-op>
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
target_compile_definitions(lockstep_flags INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE
    -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()
if(LOCKSTEP_FUZZ)
  target_compile_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What is shipped, so the library and the tool, is hardened, and the folders of the build are not in it: two folders give the same
# bytes. Not for Debug, where a debugger needs the paths, and not with sanitizers, which have their own checks.
add_library(lockstep_shipped_flags INTERFACE)
if(NOT LOCKSTEP_SANITIZE)
  set(optimised $<CONFIG:Release,RelWithDebInfo,MinSizeRel>)
  # A compiler cache names the sources by their path from the build folder.
  cmake_path(RELATIVE_PATH PROJECT_SOURCE_DIR BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE sources_from_build)
  target_compile_options(lockstep_shipped_flags INTERFACE
    $<${optimised}:-fstack-protector-strong;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>
    $<${optimised}:-ffile-prefix-map=${sources_from_build}=.>
    $<${optimised}:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.;-ffile-prefix-map=${PROJECT_BINARY_DIR}=build>)
  target_link_options(lockstep_shipped_flags INTERFACE $<${optimised}:LINKER:-z,relro,-z,now,-z,noexecstack>)
endif()

# A compiler cache, where one is installed: paths are taken relative to the sources, so that a second checkout finds what the first built.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LOCKSTEP_CCACHE ccache)
  mark_as_advanced(LOCKSTEP_CCACHE)
  if(LOCKSTEP_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${LOCKSTEP_CCACHE})
  endif()
endif()
