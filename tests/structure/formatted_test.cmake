# Every source is as clang-format would write it. Variables: clang_format (a path, or NOTFOUND), root.
cmake_minimum_required(VERSION 3.25)
if(NOT clang_format)
  message("SKIPPED: found no clang-format-14; it is in the package clang-format-14")
  return()
endif()

function(count_findings result)
  execute_process(COMMAND ${clang_format} --dry-run --style=file:${root}/.clang-format ${ARGN}
    WORKING_DIRECTORY ${root} ERROR_VARIABLE findings COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]*-Wclang-format-violations" lines "${findings}")
  list(LENGTH lines count)
  set(${result} ${count} PARENT_SCOPE)
  set(findings "${findings}" PARENT_SCOPE)
endfunction()

# The control: a file that is not formatted is found.
set(unformatted ${CMAKE_CURRENT_BINARY_DIR}/unformatted.cpp)
file(WRITE ${unformatted} "int  main( ){return 0 ;}\n")
count_findings(planted ${unformatted})
file(REMOVE ${unformatted})
if(planted EQUAL 0)
  message(FATAL_ERROR "clang-format accepts a file that is not formatted: the test finds nothing")
endif()

file(GLOB_RECURSE sources ${root}/include/*.h ${root}/src/*.h ${root}/src/*.cpp ${root}/tests/*.h ${root}/tests/*.cpp
  ${root}/examples/*.h ${root}/examples/*.cpp)
count_findings(found ${sources})
if(found GREATER 0)
  message(FATAL_ERROR "${found} places are not formatted; run clang-format -i on these files:\n${findings}")
endif()
