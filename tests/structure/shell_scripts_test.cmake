# shellcheck finds no error and no warning in any script. Variables: shellcheck (a path, or NOTFOUND), root.
cmake_minimum_required(VERSION 3.25)
if(NOT shellcheck)
  message("SKIPPED: found no shellcheck; it is in the package of this name")
  return()
endif()

# A script may source another one by its path from the root.
function(check result)
  execute_process(COMMAND ${shellcheck} --external-sources --severity=warning --format=gcc ${ARGN}
    WORKING_DIRECTORY ${root} OUTPUT_VARIABLE findings ERROR_VARIABLE failure RESULT_VARIABLE code)
  if(code GREATER 1)  # 1: it has findings
    message(FATAL_ERROR "shellcheck ended with ${code}:\n${failure}")
  endif()
  set(${result} "${findings}" PARENT_SCOPE)
endfunction()

# The control: a script with a mistake is found.
set(wrong ${CMAKE_CURRENT_BINARY_DIR}/wrong.sh)
file(WRITE ${wrong} "#!/bin/bash\ncd $1\nrm -rf \"$2/\"\n")
check(planted ${wrong})
file(REMOVE ${wrong})
if(planted STREQUAL "")
  message(FATAL_ERROR "shellcheck accepts a script with a mistake: the test finds nothing")
endif()

file(GLOB_RECURSE scripts ${root}/cmake/*.sh ${root}/examples/*.sh ${root}/examples/*.sbatch ${root}/tests/*.sh)
list(LENGTH scripts count)
if(count LESS 15)
  message(FATAL_ERROR "found ${count} scripts, expected those of cmake, examples and tests")
endif()
check(found ${scripts})
if(NOT found STREQUAL "")
  message(FATAL_ERROR "correct these scripts:\n${found}")
endif()
