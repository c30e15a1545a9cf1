# What `cmake --install` puts where: the programs, their units and sample configurations, the trainer's
# and the engine's library with their headers, and a package: find_package(deltawire) gives
# deltawire::export and deltawire::engine. Each component is one Debian package
# (DeltawirePackages.cmake).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The systemd units, with the path that the programs have here.
function(dw_install_units component)
  foreach(unit ${ARGN})
    file(READ "${PROJECT_SOURCE_DIR}/deploy/systemd/${unit}" text)
    string(REPLACE "/usr/bin/" "${CMAKE_INSTALL_FULL_BINDIR}/" text "${text}")
    file(CONFIGURE OUTPUT "systemd/${unit}" CONTENT "${text}" @ONLY)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/systemd/${unit}"
      DESTINATION lib/systemd/system COMPONENT ${component})
  endforeach()
endfunction()

foreach(daemon sender receiver)
  install(TARGETS deltawire-${daemon} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    COMPONENT ${daemon})
  dw_install_units(${daemon} deltawire-${daemon}.service deltawire-${daemon}@.service)
  # The same user and directories for both, under two names, since either may be there alone.
  install(FILES deploy/systemd/deltawire.sysusers.conf
    DESTINATION lib/sysusers.d RENAME deltawire-${daemon}.conf COMPONENT ${daemon})
  install(FILES deploy/systemd/deltawire.tmpfiles.conf
    DESTINATION lib/tmpfiles.d RENAME deltawire-${daemon}.conf COMPONENT ${daemon})
  # No configuration is installed where a unit would find it: it has to name addresses and models.
  install(FILES configs/${daemon}.toml
    DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples COMPONENT ${daemon})
endforeach()
install(FILES deploy/systemd/gpu.conf.example
  DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples COMPONENT sender)

install(TARGETS deltawire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(FILES deploy/completion/deltawire.bash
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME deltawire COMPONENT cli)
install(FILES deploy/completion/_deltawire
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT cli)
install(FILES deploy/completion/deltawire.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT cli)
install(FILES deploy/systemd/deltawire.sysctl.conf.example
  deploy/prometheus/deltawire.rules.yml deploy/grafana/deltawire.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples COMPONENT cli)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)

install(TARGETS deltawire_export EXPORT deltawireTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT export NAMELINK_COMPONENT dev)
install(TARGETS deltawire_engine EXPORT deltawireTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT engine NAMELINK_COMPONENT dev)
if(TARGET deltawire_nccl)
  install(TARGETS deltawire_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT nccl)
endif()
install(FILES sender/export/abi/deltawire_export.h receiver/engine_client/abi/deltawire_engine.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltawire COMPONENT dev)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltawire)
install(EXPORT deltawireTargets NAMESPACE deltawire:: DESTINATION ${package_dir} COMPONENT dev)
file(CONFIGURE OUTPUT deltawireConfig.cmake
  CONTENT [[include("${CMAKE_CURRENT_LIST_DIR}/deltawireTargets.cmake")
]] @ONLY)
write_basic_package_version_file(deltawireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/deltawireConfigVersion.cmake"
  DESTINATION ${package_dir} COMPONENT dev)
