// Command lines and files of options, as a daemon would parse them. Functions own nothing; a
// ConfigFile is removed with its object. Threads: the test's.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "common/config/options.h"
#include "tests/support/temp_dir.h"

namespace deltawire {

inline Parsed<SenderOptions> Sender(std::vector<const char*> args) {
  args.insert(args.begin(), "deltawire-sender");
  return ParseSenderOptions(static_cast<int>(args.size()), args.data());
}

inline Parsed<ReceiverOptions> Receiver(std::vector<const char*> args) {
  args.insert(args.begin(), "deltawire-receiver");
  return ParseReceiverOptions(static_cast<int>(args.size()), args.data());
}

/// Checks that parsing failed with exit code 2 and a text that has all of `parts`.
template <typename Options>
void CheckError(const Parsed<Options>& parsed, const std::vector<std::string>& parts) {
  CHECK_FALSE(parsed.run);
  CHECK(parsed.exit_code == 2);
  CAPTURE(parsed.text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(parsed.text.find(part) != std::string::npos);
  }
}

/// A TOML file that holds `content`.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& content) : path_((temp_.path() / "x.toml").native()) {
    std::ofstream(path_) << content;
  }
  const char* path() const { return path_.c_str(); }

 private:
  TempDir temp_;
  std::string path_;
};

}  // namespace deltawire
