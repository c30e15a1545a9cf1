// Chains of versions on a disk, pulled as docs/disk_delta.md says that a reader does.
#include "receiver/disk_delta/disk_delta.h"

#include <sys/stat.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/layout/safetensors.h"
#include "tests/support/temp_dir.h"

namespace deltawire::receiver::disk_delta_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Model = std::map<std::string, std::string>;  // bytes by tensor

const auto kOn = [] { return false; };
constexpr Hash128 kLineage{0x1234, 0x5678};

std::string Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Model First() {
  Model model;
  for (int t = 0; t < 5; ++t) {
    std::string& bytes = model[fmt::format("t{}", t)];
    for (int i = 0; i < 1000 + t; ++i) bytes.push_back(static_cast<char>(i * (t + 3)));
  }
  model["empty"] = "";
  return model;
}

Identity At(uint64_t version, uint64_t epoch = 1) {
  return {.lineage = kLineage, .id = {epoch, version}, .root = version * 31 + epoch, .attempt = 0};
}

/// What a puller has on its own disk.
struct Puller {
  fs::path run;
  std::optional<uint64_t> version;
  Model model;

  json Index(uint64_t v) const {
    const std::string text =
        Slurp(run / fmt::format("weight_v{:06}", v) / "model.safetensors.index.json");
    return text.empty() ? json::object() : json::parse(text);
  }
  bool IsDelta(uint64_t v) const {
    REQUIRE(fs::is_directory(run / fmt::format("weight_v{:06}", v)));
    return Index(v).contains("metadata") && Index(v)["metadata"].contains("delta_encoding");
  }
  void Pull(uint64_t target) {
    uint64_t start = target;
    while (start > version.value_or(0) && IsDelta(start)) --start;
    if (!version || start > *version) {
      REQUIRE_FALSE(IsDelta(start));
      Reset(start);
    }
    for (uint64_t v = *version + 1; v <= target; ++v) Apply(v);
  }
  void Reset(uint64_t v) {
    const std::string file = Slurp(run / fmt::format("weight_v{:06}", v) / "model.safetensors");
    const auto header = ParseSafetensorsHeader(AsBytes(file), file.size(), "whole");
    REQUIRE(header.ok());
    model.clear();
    for (const StoredTensor& t : header->tensors) {
      model[t.meta.name] = file.substr(header->data_offset + t.begin, t.end - t.begin);
    }
    version = v;
  }
  void Apply(uint64_t v) {
    const json index = Index(v);
    const json& meta = index["metadata"];
    REQUIRE(meta["base_version"] == fmt::format("{:06}", *version));
    REQUIRE(meta["version"] == fmt::format("{:06}", v));
    CHECK(meta["compression_format"] == "zstd");
    CHECK(meta["checksum_format"] == "xxh3-128");
    std::set<std::string> files;
    for (const auto& [tensor, file] : index["weight_map"].items()) files.insert(file);
    for (const std::string& name : files) {
      const std::string file = Slurp(run / fmt::format("weight_v{:06}", v) / name);
      const auto header = ParseSafetensorsHeader(AsBytes(file), file.size(), name);
      REQUIRE(header.ok());
      for (const StoredTensor& t : header->tensors) {
        CHECK(index["weight_map"][t.meta.name] == name);
        std::string& bytes = model.at(t.meta.name);
        Change(bytes, file.substr(header->data_offset + t.begin, t.end - t.begin),
               meta["delta_encoding"]);
        CHECK(Xxh3_128(AsBytes(bytes)).Hex() == header->metadata.at(t.meta.name));
      }
    }
    version = v;
  }
  static void Change(std::string& bytes, const std::string& payload, const std::string& encoding) {
    std::string plain(ZSTD_getFrameContentSize(payload.data(), payload.size()), 0);
    REQUIRE(ZSTD_decompress(plain.data(), plain.size(), payload.data(), payload.size()) ==
            plain.size());
    if (encoding == "xor") {
      REQUIRE(plain.size() == bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ plain[i]);
      return;
    }
    const auto* at = reinterpret_cast<const std::byte*>(plain.data());
    const auto count = LoadLe<uint32_t>(at);
    REQUIRE(plain.size() == 4 + size_t{5} * count);
    for (uint32_t i = 0; i < count; ++i) {
      bytes.at(LoadLe<uint32_t>(at + 4 + size_t{4} * i)) = plain[4 + size_t{4} * count + i];
    }
  }
};

struct Setup {
  explicit Setup(DiskDeltaOptions with = {}) : options(std::move(with)) {
    options.directory = dir.path() / "out";
    options.threads = 2;
    fs::create_directories(dir.path() / "model");
    std::ofstream(dir.path() / "model" / "config.json") << "{\"a\": 1}";
    Restart();
  }
  void Restart() {
    writer.reset();
    writer = std::make_unique<DiskDelta>(options);
  }
  /// As a commit does: by a rename, so that nobody's mapping changes.
  void Commit(const Model& model) {
    std::vector<TensorMeta> metas;
    for (const auto& [name, bytes] : model) metas.push_back({name, DType::kU8, {bytes.size()}});
    std::ofstream out(dir.path() / "model" / ".new", std::ios::binary);
    out << BuildSafetensorsHeader(*Layout::Create(metas));
    for (const auto& [name, bytes] : model) out << bytes;
    out.close();
    fs::rename(dir.path() / "model" / ".new", dir.path() / "model" / "model.safetensors");
  }
  Status Write(const Identity& id) { return writer->Write(dir.path() / "model", id, kOn); }
  fs::path Run(uint64_t epoch = 1) const {
    return options.directory / fmt::format("{}-{}", kLineage.Hex(), epoch);
  }
  std::set<std::string> Versions(uint64_t epoch = 1) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Run(epoch))) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  TempDir dir;
  DiskDeltaOptions options;
  std::unique_ptr<DiskDelta> writer;
};

/// Changes some bytes of two tensors, as `v` decides.
void Step(Model& model, uint64_t v) {
  for (const uint64_t t : {v % 5, (v * 3 + 1) % 5}) {
    std::string& bytes = model[fmt::format("t{}", t)];
    for (uint64_t i = v % 7; i < bytes.size(); i += 100 + v) bytes[i] = static_cast<char>(v + i);
  }
}

TEST_CASE("disk delta: a chain of versions gives the committed bytes in either encoding") {
  const auto encoding = GENERATE(DiskDeltaEncoding::kXor, DiskDeltaEncoding::kOverwrite);
  Setup s({.encoding = encoding});
  Model model = First();
  Puller follows{s.Run(), {}, {}};
  for (uint64_t v = 4; v < 12; ++v) {
    if (v > 4) Step(model, v);
    s.Commit(model);
    REQUIRE(s.Write(At(v)) == absl::OkStatus());
    follows.Pull(v);
    CHECK(follows.model == model);
    CHECK(follows.IsDelta(v) == (v > 4));
    CHECK(Slurp(s.options.directory / "latest") ==
          fmt::format("{}/weight_v{:06}\n", s.Run().filename().native(), v));
  }
  CHECK(Slurp(s.Run() / "weight_v000004" / "config.json") == "{\"a\": 1}");
  Puller late{s.Run(), {}, {}};
  late.Pull(11);
  CHECK(late.model == model);
  CHECK(follows.Index(7)["metadata"]["delta_encoding"] == ToString(encoding));
}

TEST_CASE("disk delta: versions that were never committed are empty steps of the chain") {
  Setup s;
  Model model = First();
  s.Commit(model);
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  Step(model, 5);
  s.Commit(model);
  REQUIRE(s.Write(At(5)) == absl::OkStatus());
  Puller puller{s.Run(), {}, {}};
  puller.Pull(1);
  puller.Pull(5);
  CHECK(puller.model == model);
  CHECK(puller.Index(3)["weight_map"].empty());
  CHECK(json::parse(Slurp(s.Run() / "weight_v000003" / "deltawire.json"))["kind"] == "gap");
}

TEST_CASE("disk delta: the number of versions is bounded, and late readers find a whole one") {
  Setup s({.keep = 3});
  Model model = First();
  Puller follows{s.Run(), {}, {}};
  for (uint64_t v = 1; v < 30; ++v) {
    Step(model, v);
    s.Commit(model);
    REQUIRE(s.Write(At(v)) == absl::OkStatus());
    CHECK(s.Versions().size() <= 2 * (3 + 1));
    follows.Pull(v);
    CHECK(follows.model == model);
    Puller late{s.Run(), {}, {}};
    late.Pull(v);
    CHECK(late.model == model);
    // A reader in the middle of the chain before finds what it needs.
    if (v < 3) continue;
    Puller slow{s.Run(), {}, {}};
    slow.Pull(v - 2);
  }
}

TEST_CASE("disk delta: after a restart the chain goes on, or begins anew with a whole version") {
  Setup s;
  Model model = First();
  s.Commit(model);
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  Step(model, 2);
  s.Commit(model);
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  s.Restart();
  // The receiver says first what it holds, which lies there.
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  Step(model, 3);
  s.Commit(model);
  REQUIRE(s.Write(At(3)) == absl::OkStatus());
  Puller puller{s.Run(), {}, {}};
  CHECK(puller.IsDelta(3));
  puller.Pull(3);
  CHECK(puller.model == model);
  s.Restart();
  Step(model, 4);
  s.Commit(model);
  REQUIRE(s.Write(At(4)) == absl::OkStatus());
  CHECK_FALSE(puller.IsDelta(4));
  puller.Pull(4);
  CHECK(puller.model == model);
}

TEST_CASE("disk delta: a rollback begins a run of its own, and only the last ended run stays") {
  Setup s;
  Model model = First();
  for (uint64_t epoch = 1; epoch < 5; ++epoch) {
    Step(model, epoch);
    s.Commit(model);
    REQUIRE(s.Write(At(9 - epoch, epoch)) == absl::OkStatus());
    Puller puller{s.Run(epoch), {}, {}};
    puller.Pull(9 - epoch);
    CHECK(puller.model == model);
  }
  CHECK_FALSE(fs::exists(s.Run(1)));
  CHECK_FALSE(fs::exists(s.Run(2)));
  CHECK(fs::exists(s.Run(3)));
}

TEST_CASE("disk delta: a model of another layout is written whole") {
  Setup s;
  Model model = First();
  s.Commit(model);
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  model["more"] = "bytes";
  s.Commit(model);
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  Puller puller{s.Run(), {}, {}};
  CHECK_FALSE(puller.IsDelta(2));
  puller.Pull(2);
  CHECK(puller.model == model);
}

TEST_CASE("disk delta: a version that is given up leaves nothing, and can be written later") {
  Setup s;
  Model model = First();
  const auto stops = [looks = 0]() mutable { return ++looks > 1; };  // when it has begun to write
  s.Commit(model);
  const Status whole = s.writer->Write(s.dir.path() / "model", At(1), stops);
  CHECK(whole.code() == StatusCode::kCancelled);
  CHECK(s.Versions().empty());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  Step(model, 2);
  s.Commit(model);
  const Status delta = s.writer->Write(s.dir.path() / "model", At(2), stops);
  CHECK(delta.code() == StatusCode::kCancelled);
  CHECK(s.Versions() == std::set<std::string>{"weight_v000001"});
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  Puller puller{s.Run(), {}, {}};
  CHECK(puller.IsDelta(2));
  puller.Pull(2);
  CHECK(puller.model == model);
}

TEST_CASE("disk delta: a version that was given up behind its gaps can be written later") {
  Setup s;
  Model model = First();
  s.Commit(model);
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  Step(model, 4);
  s.Commit(model);
  const Status stopped = s.writer->Write(s.dir.path() / "model", At(4), [] { return true; });
  CHECK(stopped.code() == StatusCode::kCancelled);
  Step(model, 6);
  s.Commit(model);
  REQUIRE(s.Write(At(6)) == absl::OkStatus());
  Puller puller{s.Run(), {}, {}};
  puller.Pull(6);
  CHECK(puller.model == model);
}

TEST_CASE("disk delta: a whole version behind numbers that were skipped leaves the chain before") {
  Setup s({.keep = 2});
  Model model = First();
  std::map<uint64_t, Model> was;
  const auto write = [&](uint64_t v) {
    Step(model, v);
    s.Commit(model);
    REQUIRE(s.Write(At(v)) == absl::OkStatus());
    was[v] = model;
  };
  for (const uint64_t v : {1, 2, 3}) write(v);
  Puller slow{s.Run(), {}, {}};
  slow.Pull(2);
  write(5);
  CHECK_FALSE(slow.IsDelta(5));
  slow.Pull(3);
  CHECK(slow.model == was[3]);
  slow.Pull(5);
  CHECK(slow.model == was[5]);
  for (const uint64_t v : {6, 7, 9}) write(v);
  CHECK(s.Versions() == std::set<std::string>{"weight_v000005", "weight_v000006", "weight_v000007",
                                              "weight_v000009"});
}

TEST_CASE("disk delta: after an older version was taken, later ones go on") {
  Setup s;
  std::map<uint64_t, Model> was;
  Model model = First();
  for (const uint64_t v : {6, 7, 8, 6, 9, 10}) {
    CAPTURE(v);
    if (!was.contains(v)) {
      Step(model, v);
      was[v] = model;
    }
    s.Commit(was[v]);
    REQUIRE(s.Write(At(v)) == absl::OkStatus());
    Puller puller{s.Run(), {}, {}};
    puller.Pull(v);
    CHECK(puller.model == was[v]);
  }
  Puller puller{s.Run(), {}, {}};
  CHECK_FALSE(puller.IsDelta(9));
  CHECK(puller.IsDelta(10));
}

TEST_CASE("disk delta: what a killed writer had begun is removed by the next one") {
  Setup s;
  s.Commit(First());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  const fs::path begun = s.Run() / ".weight_v000002.partial",
                 theirs = s.Run() / ".weight_v2.partial";
  for (const fs::path& path : {begun, theirs}) {
    fs::create_directories(path);
    std::ofstream(path / "model.safetensors") << "half";
  }
  s.Restart();
  REQUIRE(s.Write(At(3)) == absl::OkStatus());
  CHECK_FALSE(fs::exists(begun));
  CHECK(fs::exists(theirs / "model.safetensors"));
}

TEST_CASE("disk delta: copies that somebody made of versions and runs are left alone") {
  Setup s({.keep = 1});
  Model model = First();
  const auto write = [&](const Identity& id) {
    Step(model, id.id.version);
    s.Commit(model);
    REQUIRE(s.Write(id) == absl::OkStatus());
  };
  write(At(1));
  const auto copy = [](const fs::path& from, const std::string& name) {
    fs::copy(from, from.parent_path() / name, fs::copy_options::recursive);
    return from.parent_path() / name;
  };
  const std::vector<fs::path> copies = {
      copy(s.Run() / "weight_v000001", "weight_v000001.bak"),
      copy(s.Run() / "weight_v000001", "best"),
      copy(s.Run() / "weight_v000001", "weight_v1"),
      copy(s.Run(), s.Run().filename().native() + ".old"),
      copy(s.Run(), s.Run().filename().native() + "-2"),
      copy(s.Run(), s.Run().filename().native() + "0x"),
  };
  for (uint64_t v = 2; v < 10; ++v) write(At(v));
  CHECK_FALSE(fs::exists(s.Run() / "weight_v000001"));
  for (const fs::path& path : copies) CHECK(fs::exists(path));
  for (uint64_t epoch = 2; epoch < 5; ++epoch) write(At(3, epoch));
  CHECK_FALSE(fs::exists(s.Run(2)));
  for (const fs::path& path : copies) {
    CAPTURE(path);
    if (path.parent_path() == s.options.directory) CHECK(fs::exists(path));
  }
}

TEST_CASE("disk delta: a version whose time is over is not published, however far it got") {
  Setup s;
  Model model = First();
  s.Commit(model);
  const auto write = [&](uint64_t v, int looks) {
    return s.writer->Write(s.dir.path() / "model", At(v), [&] { return --looks < 0; });
  };
  // Each look at the limit in its turn finds it over.
  for (const uint64_t v : {1, 2}) {
    CAPTURE(v);
    int looks = 0;
    Status written;
    do {
      written = write(v, looks++);
      CHECK(fs::exists(s.Run() / fmt::format("weight_v{:06}", v)) == written.ok());
    } while (written.code() == StatusCode::kCancelled);
    CHECK(written == absl::OkStatus());
    CHECK(looks > 2);  // the last look comes when all is written
    Step(model, 2);
    s.Commit(model);
  }
}

TEST_CASE("disk delta: a late call for a version that lies there does not take the next for it") {
  Setup s;
  Model model = First();
  s.Commit(model);
  REQUIRE(s.Write(At(1)).ok());
  s.Restart();
  Step(model, 2);
  s.Commit(model);
  const Status late =
      s.writer->Write(s.dir.path() / "model", At(1), [] { return true; });  // its hold is over
  CHECK(absl::IsCancelled(late));
  REQUIRE(s.Write(At(2)).ok());
  Puller puller{s.Run(), {}, {}};
  puller.Pull(2);
  CHECK(puller.model == model);
}

TEST_CASE("disk delta: a second writer of one directory is refused while the first lives") {
  Setup s;
  s.Commit(First());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  DiskDelta second(s.options);
  const Status refused = second.Write(s.dir.path() / "model", At(2), kOn);
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(s.Versions() == std::set<std::string>{"weight_v000001"});
  s.writer.reset();
  CHECK(second.Write(s.dir.path() / "model", At(2), kOn) == absl::OkStatus());
}

TEST_CASE("disk delta: a directory that is not ours is neither overwritten nor removed") {
  Setup s;
  const fs::path foreign = s.Run() / "weight_v000001";
  fs::create_directories(foreign);
  std::ofstream(foreign / "precious") << "1";
  s.Commit(First());
  const Status refused = s.Write(At(1));
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(std::string(MessageOf(refused)).find(foreign.native()) != std::string::npos);
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  CHECK(Slurp(foreign / "precious") == "1");
}

fs::perms ModeOf(const fs::path& path) { return fs::status(path).permissions(); }

TEST_CASE("disk delta: others read what the directory lets them, and write nothing") {
  for (const auto mode : {fs::perms(0700), fs::perms(0750), fs::perms(0755)}) {
    Setup s;
    fs::create_directory(s.options.directory);
    fs::permissions(s.options.directory, mode);
    Model model = First();
    const mode_t before = umask(0);  // as a service with a loose one
    for (const uint64_t v : {1, 2}) {
      Step(model, v);
      s.Commit(model);
      REQUIRE(s.Write(At(v)) == absl::OkStatus());
    }
    umask(before);
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(s.options.directory)) {
      INFO(entry.path());
      if (entry.path().filename() == ".deltawire.lock") continue;
      files += entry.is_regular_file();
      const auto readable = mode & (entry.is_directory() ? fs::perms(0777) : fs::perms(0644));
      CHECK(ModeOf(entry.path()) == readable);
    }
    CHECK(files >= 6);
  }
  Setup s;
  s.Commit(First());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  CHECK(ModeOf(s.options.directory) == fs::perms(0700));
}

TEST_CASE("disk delta: links lead to no file elsewhere, and a directory of others is refused") {
  Setup s;
  fs::create_directory(s.options.directory);
  const fs::path precious = s.dir.path() / "precious";
  std::ofstream(precious) << "1";
  fs::create_symlink(precious, s.options.directory / ".latest.partial");
  s.Commit(First());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  CHECK(Slurp(precious) == "1");
  CHECK_FALSE(fs::is_symlink(s.options.directory / "latest"));
  CHECK(Slurp(s.options.directory / "latest").ends_with("weight_v000001\n"));
  fs::create_directory_symlink(s.dir.path() / "model", s.Run(2));
  CHECK_FALSE(s.Write(At(2, 2)).ok());
  CHECK_FALSE(fs::exists(s.dir.path() / "model" / "weight_v000002"));

  Setup open;
  fs::create_directory(open.options.directory);
  fs::permissions(open.options.directory, fs::perms(0777));
  open.Commit(First());
  const Status refused = open.Write(At(1));
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(std::string(MessageOf(refused)).find("may be written by others (mode 0777)") !=
        std::string::npos);
}

TEST_CASE(
    "disk delta: a directory that is made is this user's alone, also with a slash behind it") {
  const bool slash = GENERATE(false, true);
  Setup s;
  s.options.directory = slash ? s.dir.path() / "deltas/made/" : s.dir.path() / "deltas/made";
  s.Restart();
  s.Commit(First());
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  const auto mode = fs::status(s.dir.path() / "deltas/made").permissions();
  CHECK(mode == fs::perms::owner_all);
}

TEST_CASE("disk delta: the document's worked example is what is written") {
  std::ifstream in(DELTAWIRE_DISK_DELTA_DOC);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto encoding = GENERATE(DiskDeltaEncoding::kXor, DiskDeltaEncoding::kOverwrite);
  Setup s({.encoding = encoding});
  Model model{{"t", {0, 1, 2, 3, 4, 5, 6, 7}}};
  s.Commit(model);
  REQUIRE(s.Write(At(1)) == absl::OkStatus());
  model["t"][2] = '\xaa';
  model["t"][5] = '\xbb';
  s.Commit(model);
  REQUIRE(s.Write(At(2)) == absl::OkStatus());
  const std::string file = Slurp(s.Run() / "weight_v000002" / "model-00001.safetensors");
  const auto header = ParseSafetensorsHeader(AsBytes(file), file.size(), "delta");
  REQUIRE(header.ok());
  const std::string payload = file.substr(header->data_offset);
  std::string plain(ZSTD_getFrameContentSize(payload.data(), payload.size()), 0);
  REQUIRE(ZSTD_decompress(plain.data(), plain.size(), payload.data(), payload.size()) ==
          plain.size());
  std::string hex;
  for (const char c : plain) hex += fmt::format(" {:02x}", static_cast<unsigned char>(c));
  CHECK(text.find(fmt::format("{:<10}{}\n", ToString(encoding), hex)) != std::string::npos);
  CHECK(text.find("`" + header->metadata.at("t") + "`") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::receiver::disk_delta_test
