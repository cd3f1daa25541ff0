# Compiles a target that must not compile, and compares what the compiler says.
# cmake -D build=... -D target=... -D expected=... -P compile_fail_test.cmake
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --target ${target}
  RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
string(REGEX MATCHALL "error: [^\n]*" errors "${said}")
list(LENGTH errors count)
if(result EQUAL 0 OR NOT count EQUAL 1 OR NOT errors MATCHES "${expected}")
  message(FATAL_ERROR "found ${count} errors, expected one with '${expected}':\n${said}")
endif()
