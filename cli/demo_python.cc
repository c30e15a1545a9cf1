#include "cli/demo_python.h"

#include <cstdlib>

#include "cli/child_process.h"

namespace deltawire::cli {
namespace {

constexpr auto kLimit = std::chrono::minutes(5);
constexpr int kNoPackage = 77;

// deserialize() returns raw bytes, so bf16 needs no numpy type.
constexpr const char* kScript = R"(
import hashlib, sys
try:
    import safetensors
except ImportError:
    sys.exit(77)

def read(path):
    with open(path, "rb") as f:
        tensors = safetensors.deserialize(f.read())
    return {name: (t["dtype"], tuple(t["shape"]), hashlib.sha256(t["data"]).digest())
            for name, t in tensors}

got, want = read(sys.argv[1]), read(sys.argv[2])
wrong = sorted(n for n in want.keys() | got.keys() if want.get(n) != got.get(n))
if wrong:
    print(f"{len(wrong)} tensors differ, first {wrong[0]}")
    sys.exit(1)
version = safetensors.__version__
print(f"safetensors {version} loads all {len(got)} tensors, SHA-256 as the source's")
)";

}  // namespace

PythonCheck CheckWithPython(const std::filesystem::path& received,
                            const std::filesystem::path& source,
                            const std::filesystem::path& scratch) {
  using Result = PythonCheck::Result;
  const char* chosen = std::getenv("DELTAWIRE_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
  const auto log = scratch / "python.log";
  auto child = ChildProcess::Spawn(
      "python",
      {python, "-c", kScript, received / "model.safetensors", source / "model.safetensors"}, log);
  if (!child.ok()) return {Result::kNotRun, std::string(MessageOf(child.status()))};
  const int status = (*child)->Wait(kLimit);
  std::string line = (*child)->LogTail(1);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  line.erase(0, line.find_first_not_of(' '));
  if (status == 0) return {Result::kEqual, line};
  if (status == kNoPackage) {
    return {Result::kNotRun, "not run, since " + python +
                                 " has no safetensors; install it there with pip, or name another "
                                 "Python in DELTAWIRE_PYTHON"};
  }
  if (status == 127) {
    return {Result::kNotRun, "not run, since there is no " + python +
                                 "; name a Python with safetensors in DELTAWIRE_PYTHON"};
  }
  if (status < 0) return {Result::kDifferent, "it did not end in time"};
  return {Result::kDifferent, line};
}

}  // namespace deltawire::cli
