# Manual pages, and Debian packages by cpack: `./run package`. A package for each component of
# DeltawireInstall.cmake; what they have in common, and their scripts, comes from deploy/debian.
find_program(HELP2MAN help2man)  # `deploy/tarball.sh` builds the programs without it
find_program(GZIP_PROGRAM gzip REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(DELTAWIRE_MAINTAINER "The deltawire authors <maintainers@deltawire.example>" CACHE STRING
  "Whom Debian's packages name")

set(debian "${PROJECT_SOURCE_DIR}/deploy/debian")
set(made "${CMAKE_CURRENT_BINARY_DIR}/debian")
file(MAKE_DIRECTORY "${made}")

# ---- manual pages, from --help -------------------------------------------------------------------

set(pages)
# dw_manual(PAGE SECTION TARGET COMPONENT SUMMARY COMMAND...)
function(dw_manual page section target component summary)
  set(output "${made}/${page}.${section}.gz")
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" -E env SOURCE_DATE_EPOCH=${DELTAWIRE_DATE} LC_ALL=C.UTF-8
      sh "${debian}/manual.sh" "${HELP2MAN}" "${output}" "$<TARGET_FILE:${target}>" "${page}"
      ${section} "${PROJECT_VERSION}" "${summary}" ${ARGN}
    DEPENDS ${target} "${debian}/manual.sh"
    VERBATIM)
  install(FILES "${output}" DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section}
    COMPONENT ${component})
  set(pages ${pages} "${output}" PARENT_SCOPE)
endfunction()

# Packages made twice from one commit are the same bytes.
set(DELTAWIRE_DATE "$ENV{SOURCE_DATE_EPOCH}")
if(NOT DELTAWIRE_DATE)
  execute_process(COMMAND git -C "${PROJECT_SOURCE_DIR}" log -1 --format=%ct
    OUTPUT_VARIABLE DELTAWIRE_DATE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT DELTAWIRE_DATE)
  string(TIMESTAMP DELTAWIRE_DATE "%s" UTC)
endif()

dw_manual(deltawire 1 deltawire cli "bring inference engines' weights in step with a trainer's")
foreach(command publish status top sync wait watch verify pause resume rollback unregister inspect
    diff plan convert doctor limits bench-link simulate certs demo version help completion)
  dw_manual(deltawire-${command} 1 deltawire cli "deltawire's command ${command}" ${command})
endforeach()
dw_manual(deltawire-sender 8 deltawire-sender sender "publish a trainer's weights as versions")
dw_manual(deltawire-receiver 8 deltawire-receiver receiver
  "keep a model in step with a deltawire sender")
add_custom_target(manual ALL DEPENDS ${pages})

# ---- packages ------------------------------------------------------------------------------------

string(TIMESTAMP changelog_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
execute_process(COMMAND date -u -R -d "@${DELTAWIRE_DATE}"
  OUTPUT_VARIABLE changelog_date OUTPUT_STRIP_TRAILING_WHITESPACE)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME deltawire)
set(CPACK_PACKAGE_VENDOR "The deltawire authors")
set(CPACK_PACKAGE_CONTACT "${DELTAWIRE_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/packages")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL sender receiver cli export engine dev doc)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${CPACK_PACKAGE_CONTACT}")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# dw_package(COMPONENT PACKAGE SECTION SUMMARY TEXT)
function(dw_package component package section summary text)
  string(TOUPPER "${component}" C)
  set(CPACK_DEBIAN_${C}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(CPACK_DEBIAN_${C}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_COMPONENT_${C}_DESCRIPTION "${summary}\n${text}" PARENT_SCOPE)
  install(FILES "${debian}/copyright" DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component})
  # Policy wants a compressed changelog in each package.
  file(CONFIGURE OUTPUT "${made}/${package}/changelog" CONTENT "${package} (${PROJECT_VERSION}) unstable; \
urgency=medium

  * The list of changes is CHANGELOG.md of the source.

 -- ${CPACK_PACKAGE_CONTACT}  ${changelog_date}
" @ONLY)
  execute_process(COMMAND "${GZIP_PROGRAM}" -9nf "${made}/${package}/changelog")
  install(FILES "${made}/${package}/changelog.gz"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  if(EXISTS "${debian}/${package}.overrides")
    install(FILES "${debian}/${package}.overrides"
      DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME ${package}
      COMPONENT ${component})
  endif()
  # The maintainer's scripts, if the package has some.
  set(control)
  foreach(script postinst prerm postrm triggers)
    set(from "${debian}/${script}.${component}.in")
    if(component STREQUAL "sender" OR component STREQUAL "receiver")
      set(from "${debian}/${script}.daemon.in")
    endif()
    if(EXISTS "${from}")
      set(daemon ${component})
      configure_file("${from}" "${made}/${package}/${script}" @ONLY FILE_PERMISSIONS
        OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
      list(APPEND control "${made}/${package}/${script}")
    endif()
  endforeach()
  set(CPACK_DEBIAN_${C}_PACKAGE_CONTROL_EXTRA "${control}" PARENT_SCOPE)
endfunction()

if(DELTAWIRE_CUDA_BUILT)
  set(diffs_on "\
With NVIDIA's driver and gpu = \"auto\", versions are diffed on a GPU.")
else()
  set(diffs_on "\
This package has no CUDA: versions are diffed on the CPU.")
endif()
dw_package(sender deltawire-sender net "deltawire's daemon beside a trainer" "\
It holds two buffers of a model in HuggingFace layout, finds what each version
changed, and serves it to receivers. Trainers reach it by a Unix socket.
${diffs_on}")
dw_package(receiver deltawire-receiver net "deltawire's daemon beside inference engines" "\
It keeps models in step with a sender's newest version, as files that engines
load and read, and brings running engines to each version.")
dw_package(cli deltawire-cli net "deltawire's command line" "\
Publishes, shows, compares and converts models, and tells deltawire's daemons
what to do. With completions for bash, zsh and fish.")
dw_package(export libdeltawire-export2 libs "deltawire's library for trainers" "\
Through it a trainer's ranks write their weights into the sender's buffers.")
dw_package(engine libdeltawire-engine1 libs "deltawire's library for inference engines" "\
Through it an engine takes what a version changed into its own memory.")
dw_package(dev libdeltawire-export-dev libdevel "deltawire's libraries, for development" "\
Headers, and a package for CMake, of both libraries.")
dw_package(doc deltawire-doc doc "deltawire's documents" "\
Formats, life cycles, decisions and guides, as Markdown, and JSON schemas.")
if(TARGET deltawire_core)
  list(APPEND CPACK_COMPONENTS_ALL python)
  dw_package(python python3-deltawire python "deltawire for trainers and engines in Python" "\
WeightManager publishes what a trainer holds; deltawire.engine brings versions
into a running vLLM or SGLang. torch is not needed to import it.")
endif()
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOC_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
foreach(C SENDER RECEIVER)
  set(CPACK_DEBIAN_${C}_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
  set(CPACK_DEBIAN_${C}_PACKAGE_RECOMMENDS "deltawire-cli")
endforeach()
set(own "= ${PROJECT_VERSION}")
math(EXPR next_minor "${Python3_VERSION_MINOR} + 1")  # extensions are built for one of them
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libdeltawire-export2 (${own}), libdeltawire-engine1 (${own})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS
  "python3 (>= ${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}), python3 (<< \
${Python3_VERSION_MAJOR}.${next_minor}), libdeltawire-export2 (${own}), libdeltawire-engine1 (${own})")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
include(CPack)
