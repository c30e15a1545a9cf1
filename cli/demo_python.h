// A check of the receiver's directory with the published safetensors package, without any deltawire
// code. It needs a Python that has the package, and reads both directories once. Errors are in
// PythonCheck::text.
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
/// $DELTAWIRE_PYTHON, else python3. Its output goes to the file `scratch`.
PythonCheck CheckWithPython(const std::filesystem::path& received,
                            const std::filesystem::path& source,
                            const std::filesystem::path& scratch);

}  // namespace deltawire::cli
