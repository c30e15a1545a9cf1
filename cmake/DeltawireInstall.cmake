# What `cmake --install` puts where: the programs, their sample configurations, the trainer's and the
# engine's library with their headers, and a package: find_package(deltawire) gives deltawire::export
# and deltawire::engine.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS deltawire-sender deltawire-receiver deltawire
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES configs/sender.toml configs/receiver.toml
  DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/deltawire)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The systemd units, with the path that the programs have here.
file(GLOB units CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/deploy/systemd/*.service")
foreach(unit ${units})
  file(READ "${unit}" text)
  string(REPLACE "/usr/bin/" "${CMAKE_INSTALL_FULL_BINDIR}/" text "${text}")
  get_filename_component(name "${unit}" NAME)
  file(CONFIGURE OUTPUT "systemd/${name}" CONTENT "${text}" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/systemd/${name}" DESTINATION lib/systemd/system)
endforeach()
install(FILES deploy/systemd/deltawire.sysusers.conf
  DESTINATION lib/sysusers.d RENAME deltawire.conf)
install(FILES deploy/systemd/deltawire.tmpfiles.conf
  DESTINATION lib/tmpfiles.d RENAME deltawire.conf)
install(FILES deploy/systemd/gpu.conf.example deploy/systemd/deltawire.sysctl.conf.example
  deploy/prometheus/deltawire.rules.yml deploy/grafana/deltawire.json
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

install(TARGETS deltawire_export deltawire_engine EXPORT deltawireTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET deltawire_nccl)
  install(TARGETS deltawire_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES sender/export/abi/deltawire_export.h receiver/engine_client/abi/deltawire_engine.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltawire)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltawire)
install(EXPORT deltawireTargets NAMESPACE deltawire:: DESTINATION ${package_dir})
file(CONFIGURE OUTPUT deltawireConfig.cmake
  CONTENT [[include("${CMAKE_CURRENT_LIST_DIR}/deltawireTargets.cmake")
]] @ONLY)
write_basic_package_version_file(deltawireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfigVersion.cmake" DESTINATION ${package_dir})
