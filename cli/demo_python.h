// Reads the receiver's directory with the published safetensors package, if Python has it, so
// without any code of ours. Owner: none; one process, run to its end. Threads: one caller. Cost:
// one reading of both directories. Errors: in PythonCheck::text.
#pragma once

#include <filesystem>
#include <string>

namespace deltawire::cli {

struct PythonCheck {
  enum class Result { kEqual, kDifferent, kNotRun };
  Result result = Result::kNotRun;
  std::string text;  ///< one line for people
};

/// Compares both directories' model.safetensors tensor by tensor. The interpreter is
/// $DELTAWIRE_PYTHON, else python3. `scratch`: a file for its output.
PythonCheck CheckWithPython(const std::filesystem::path& received,
                            const std::filesystem::path& source,
                            const std::filesystem::path& scratch);

}  // namespace deltawire::cli
