# What `cmake --install` puts where: the programs, their sample configurations, the trainer's library
# with its header, and a package so that find_package(deltawire) gives deltawire::export.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS deltawire-sender deltawire-receiver deltawire
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES configs/sender.toml configs/receiver.toml
  DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/deltawire)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(TARGETS deltawire_export EXPORT deltawireTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET deltawire_nccl)
  install(TARGETS deltawire_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES sender/export/abi/deltawire_export.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltawire)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltawire)
install(EXPORT deltawireTargets NAMESPACE deltawire:: DESTINATION ${package_dir})
file(CONFIGURE OUTPUT deltawireConfig.cmake
  CONTENT [[include("${CMAKE_CURRENT_LIST_DIR}/deltawireTargets.cmake")
]] @ONLY)
write_basic_package_version_file(deltawireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfigVersion.cmake" DESTINATION ${package_dir})
