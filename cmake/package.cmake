# Packages of what `cmake --install` installs: a DEB, a TGZ, and a Python wheel. The target `packages` builds what they contain, then
# them.
set(CPACK_PACKAGE_CONTACT "lockstep maintainers <maintainers@lockstep.invalid>"
  CACHE STRING "Maintainer of the packages: name <address>")
set(CPACK_PACKAGE_VENDOR "The lockstep authors")
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_FILE_NAME lockstep-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training in C++ on LibTorch")
set(CPACK_PACKAGE_DESCRIPTION_FILE ${PROJECT_SOURCE_DIR}/cmake/debian/description)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_files.cmake)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_config.cmake)
set(CPACK_LOCKSTEP_SOURCE_DATE ${LOCKSTEP_SOURCE_DATE})
set(CPACK_LOCKSTEP_SOURCE_DIR ${PROJECT_SOURCE_DIR})
set(CPACK_LOCKSTEP_LIBTORCH ${LibTorch_FOLDER})
set(CPACK_LOCKSTEP_LIBDIR ${CMAKE_INSTALL_LIBDIR})
set(CPACK_LOCKSTEP_LIBEXECDIR ${CMAKE_INSTALL_LIBEXECDIR})
set(CPACK_LOCKSTEP_DOCDIR ${CMAKE_INSTALL_DOCDIR})

# dpkg-shlibdeps names the packages of the libraries. LibTorch is of none.
set(CPACK_GENERATOR TGZ)
find_program(LOCKSTEP_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(LOCKSTEP_SHLIBDEPS)
if(LOCKSTEP_SHLIBDEPS)
  list(APPEND CPACK_GENERATOR DEB)
endif()
message(STATUS "lockstep: packages ${CPACK_GENERATOR}, wheel")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "python3")  # lockstep-convert
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake (>= 3.25) | pkgconf")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${LibTorch_FOLDER}/lib)
set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/shlibs CONTENT "liblockstep ${soversion} lockstep (>= ${soversion})\n")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/triggers CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)

add_custom_target(wheel
  COMMAND ${CMAKE_COMMAND} -D build=${PROJECT_BINARY_DIR} -D work=${PROJECT_BINARY_DIR}/wheel -D out=${PROJECT_BINARY_DIR}
    -P ${PROJECT_BINARY_DIR}/build_wheel.cmake
  DEPENDS lockstep_installed VERBATIM USES_TERMINAL)
configure_file(${PROJECT_SOURCE_DIR}/cmake/wheel/build_wheel.cmake.in ${PROJECT_BINARY_DIR}/build_wheel.cmake @ONLY)
add_custom_target(packages COMMAND ${CMAKE_CPACK_COMMAND} --config ${PROJECT_BINARY_DIR}/CPackConfig.cmake -B ${PROJECT_BINARY_DIR}
  DEPENDS lockstep_installed wheel VERBATIM USES_TERMINAL)
