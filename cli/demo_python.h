// Reads the receiver's directory with the published safetensors package, when Python has it.
// Nothing of ours is involved in that reading. One process, run to its end.
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
/// $DELTAWIRE_PYTHON, else python3. `scratch` takes the output.
PythonCheck CheckWithPython(const std::filesystem::path& received,
                            const std::filesystem::path& source,
                            const std::filesystem::path& scratch);

}  // namespace deltawire::cli
