# `cmake --install`: the library, its headers, the tools, and what finds them: find_package(lockstep) and pkg-config; the manual. All
# of it may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep EXPORT lockstep-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS lockstep_probe RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/lockstep)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.1 ${PROJECT_BINARY_DIR}/lockstep-convert.1
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(PROGRAMS ${PROJECT_SOURCE_DIR}/src/cli/lockstep_convert.py DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME lockstep-convert)
if(LOCKSTEP_CUDA)
  install(TARGETS lockstep_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT lockstep-targets NAMESPACE lockstep:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lockstep-config.cmake.in
  ${PROJECT_BINARY_DIR}/lockstep-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/lockstep-config.cmake
  ${PROJECT_BINARY_DIR}/lockstep-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake
  DESTINATION ${package_dir})

# LibTorch has no file for pkg-config: ours has the flags of the LibTorch that was found.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
  OUTPUT_VARIABLE pkgconfig_to_prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(${CMAKE_CURRENT_LIST_DIR}/sbom.cmake)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_BINARY_DIR}/lockstep.spdx.json DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The manual, with the folders of the repository: so the links between its pages work. Not the example's list of targets, which
# needs the sources of lockstep, nor its script that builds them.
install(FILES README.md CONTRIBUTING.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN docs/site EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
  PATTERN examples/CMakeLists.txt EXCLUDE
  PATTERN quickstart.sh EXCLUDE
  PATTERN __pycache__ EXCLUDE)

# Everything that is installed and has to be built first.
add_custom_target(lockstep_installed DEPENDS lockstep lockstep_cli lockstep_probe lockstep_manual)
