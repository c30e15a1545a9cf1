# What `cmake --install` puts where: the programs, their units and sample configurations, the trainer's
# and the engine's library with their headers, and a package: find_package(deltawire) gives
# deltawire::export and deltawire::engine. Each component is one Debian package
# (DeltawirePackages.cmake).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The systemd units, with the path that the programs get, which `cmake --install --prefix` may still
# change. cpack installs into a folder of its own, so that its units have the path of here.
function(dw_install_units component)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/deploy/systemd/" OUTPUT_VARIABLE units)
  set(prefix "\${CMAKE_INSTALL_PREFIX}")
  if(DELTAWIRE_PACKAGES)
    set(prefix "${CMAKE_INSTALL_PREFIX}")
  endif()
  install(CODE "
    set(programs \"${CMAKE_INSTALL_BINDIR}\")
    cmake_path(ABSOLUTE_PATH programs BASE_DIRECTORY \"${prefix}\" NORMALIZE)
    foreach(unit ${units})
      file(READ \"\${unit}\" text)
      string(REPLACE /usr/bin/ \"\${programs}/\" text \"\${text}\")
      cmake_path(GET unit FILENAME unit)
      file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/systemd/\${unit}\" \"\${text}\")
      file(INSTALL \"${CMAKE_CURRENT_BINARY_DIR}/systemd/\${unit}\"
        DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
    endforeach()" COMPONENT ${component})
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
  # Under two names, since either package may be there alone.
  foreach(drop_in file-group data-dir restart-backoff)
    install(FILES deploy/systemd/${drop_in}.conf.example
      DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples
      RENAME ${daemon}-${drop_in}.conf.example COMPONENT ${daemon})
  endforeach()
endforeach()
install(FILES deploy/systemd/gpu.conf.example deploy/systemd/deltawire-gpu-nodes.service.example
  DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples COMPONENT sender)

install(TARGETS deltawire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(FILES deploy/completion/deltawire.bash
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME deltawire COMPONENT cli)
install(FILES deploy/completion/_deltawire
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT cli)
install(FILES deploy/completion/deltawire.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT cli)
install(FILES configs/fleet.sample.toml deploy/systemd/deltawire.sysctl.conf.example
  deploy/prometheus/deltawire.rules.yml deploy/grafana/deltawire.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/deltawire/examples COMPONENT cli)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
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
