# Says in one line whether there is a CUDA compiler and what the kernels run on. The language is not
# enabled: no source of this version needs it.
set(DELTAWIRE_CUDA_NOTE "switched off; the kernels run on the CPU")
if(DELTAWIRE_CUDA)
  find_program(nvcc_path nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
  if(nvcc_path)
    execute_process(COMMAND "${nvcc_path}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" ignored "${nvcc_says}")
    set(DELTAWIRE_CUDA_NOTE
      "nvcc ${CMAKE_MATCH_1} found; this version has no CUDA kernels, they run on the CPU")
  elseif(DELTAWIRE_CUDA STREQUAL "AUTO")
    set(DELTAWIRE_CUDA_NOTE "no nvcc found; the kernels run on the CPU")
  else()
    message(FATAL_ERROR "DELTAWIRE_CUDA is ON but no nvcc was found: add it to PATH, or set "
      "CUDACXX, or configure with DELTAWIRE_CUDA=AUTO")
  endif()
endif()
message(STATUS "CUDA: ${DELTAWIRE_CUDA_NOTE}")
set(DELTAWIRE_CUDA_NOTE "${DELTAWIRE_CUDA_NOTE}" CACHE INTERNAL "What `./run` prints about CUDA")
