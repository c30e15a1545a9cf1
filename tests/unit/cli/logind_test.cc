// Whose word counts among logind's files, and what is a word.
#include "cli/logind.h"

#include <spdlog/fmt/fmt.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace deltawire::cli::logind_test {
namespace {

namespace fs = std::filesystem;

/// The root of a machine's file system.
struct Machine {
  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = dir.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// Of one file that says this.
  bool Says(const std::string& text) const {
    Write("etc/systemd/logind.conf", text);
    return LogindRemovesIpc(dir.path());
  }
  bool removes() const { return LogindRemovesIpc(dir.path()); }

  TempDir dir;
};

TEST_CASE("logind removes shared memory unless a file says otherwise") {
  const Machine machine;
  CHECK(machine.removes());
  CHECK(machine.Says(""));
  CHECK(machine.Says("[Login]\n#RemoveIPC=no\n  ; RemoveIPC=no\n"));
  CHECK_FALSE(machine.Says("[Login]\nKillUserProcesses=yes\nRemoveIPC=no\n"));
}

TEST_CASE("logind: booleans as systemd takes them") {
  const Machine machine;
  for (const char* no : {"no", "0", "n", "false", "f", "off", "No", "FALSE", "oFF"}) {
    CAPTURE(no);
    CHECK_FALSE(machine.Says(fmt::format("[Login]\nRemoveIPC={}\n", no)));
    CHECK_FALSE(machine.Says(fmt::format("[Login]\n RemoveIPC \t=  {} \r\n", no)));
    for (const char* yes : {"yes", "1", "y", "true", "t", "on", "Yes", "TRUE", "oN"}) {
      CAPTURE(yes);
      CHECK(machine.Says(fmt::format("[Login]\nRemoveIPC={}\nRemoveIPC = {}", no, yes)));
      CHECK_FALSE(machine.Says(fmt::format("[Login]\nRemoveIPC={}\nRemoveIPC={}", yes, no)));
    }
  }
}

TEST_CASE("logind: what is no boolean, another key or in another section says nothing") {
  const Machine machine;
  for (const char* line :
       {"RemoveIPC=", "RemoveIPC=maybe", "RemoveIPC=yes please", "RemoveIPC", "removeipc=yes",
        "RemoveIPCs=yes", "=yes", "[Manager]\nRemoveIPC=yes", "[login]\nRemoveIPC=yes"}) {
    CAPTURE(line);
    CHECK_FALSE(machine.Says(fmt::format("[Login]\nRemoveIPC=no\n{}\n", line)));
  }
  CHECK(machine.Says("RemoveIPC=no\n[Manager]\nRemoveIPC=no\n"));
}

TEST_CASE("logind: of drop-ins the last by name counts, wherever it lies") {
  const Machine machine;
  machine.Write("etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes\n");
  machine.Write("usr/lib/systemd/logind.conf.d/20-vendor.conf", "[Login]\nRemoveIPC=no\n");
  CHECK_FALSE(machine.removes());
  machine.Write("etc/systemd/logind.conf.d/10-site.conf", "[Login]\nRemoveIPC=yes\n");
  CHECK_FALSE(machine.removes());
  machine.Write("run/systemd/logind.conf.d/30-now.conf", "[Login]\nRemoveIPC=yes\n");
  CHECK(machine.removes());
  machine.Write("usr/local/lib/systemd/logind.conf.d/40-local.conf", "[Login]\nRemoveIPC=no\n");
  CHECK_FALSE(machine.removes());
  machine.Write("etc/systemd/logind.conf.d/50-other.conf", "[Login]\nKillUserProcesses=yes\n");
  CHECK_FALSE(machine.removes());
  machine.Write("etc/systemd/logind.conf.d/60-old.conf.bak", "[Login]\nRemoveIPC=yes\n");
  machine.Write("etc/systemd/logind.conf.d/.70-hidden.conf", "[Login]\nRemoveIPC=yes\n");
  CHECK_FALSE(machine.removes());
}

TEST_CASE("logind: a file hides those of its name in the folders that count less") {
  const Machine machine;
  machine.Write("usr/lib/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
  CHECK_FALSE(machine.removes());
  machine.Write("etc/systemd/logind.conf", "[Login]\n");
  CHECK(machine.removes());
  machine.Write("usr/lib/systemd/logind.conf.d/20-vendor.conf", "[Login]\nRemoveIPC=no\n");
  CHECK_FALSE(machine.removes());
  const fs::path mask = machine.dir.path() / "etc/systemd/logind.conf.d/20-vendor.conf";
  fs::create_directories(mask.parent_path());
  fs::create_symlink("/dev/null", mask);
  CHECK(machine.removes());
}

}  // namespace
}  // namespace deltawire::cli::logind_test
