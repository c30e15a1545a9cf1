#include "common/layout/model_dir.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "tests/support/layout_files.h"
#include "tests/support/temp_dir.h"

namespace deltawire::model_dir_test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

Layout Make(std::vector<TensorMeta> tensors) { return Layout::Create(std::move(tensors)).value(); }

/// The content of a shard with one small U8 tensor for each name.
std::string Shard(const std::vector<std::string>& names, size_t first = 0) {
  std::vector<TensorMeta> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kU8, {5}});
  return FileOfLayout(Make(std::move(tensors)), first);
}

std::string OpenError(const fs::path& path) {
  const auto model = ModelDir::Open(path);
  REQUIRE_FALSE(model.ok());
  return std::string(MessageOf(model.status()));
}

std::vector<std::string> NamesOf(const ModelDir& model) {
  std::vector<std::string> names;
  for (const TensorMeta& t : model.layout().tensors()) names.push_back(t.name);
  return names;
}

constexpr std::string_view kIndex = "model.safetensors.index.json";

/// Writes two shards and an index that matches them and has the extra JSON members of real ones.
void WriteSharded(const fs::path& dir) {
  WriteFile(dir / "model-00001.safetensors", Shard({"z", "a"}, 0));
  WriteFile(dir / "model-00002.safetensors", Shard({"m"}, 2));
  WriteFile(dir / kIndex,
            R"({"metadata":{"total_size":15},"weight_map":{"a":"model-00001.safetensors",)"
            R"("m":"model-00002.safetensors","z":"model-00001.safetensors"}})");
}

TEST_CASE("model dir: without an index, a numbered set must be whole") {
  const TempDir temp;
  WriteFile(temp.path() / "model-00001-of-00003.safetensors", Shard({"a"}));
  WriteFile(temp.path() / "model-00003-of-00003.safetensors", Shard({"c"}));
  CHECK_THAT(OpenError(temp.path()),
             Contains("has 2 of the 3 files model-*-of-00003.safetensors, and no") &&
                 Contains("still being saved"));
  WriteFile(temp.path() / "consolidated.safetensors", Shard({"x"}));
  CHECK_THAT(OpenError(temp.path()), Contains("has 2 of the 3"));
  WriteFile(temp.path() / "model-00002-of-00003.safetensors", Shard({"b"}));
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(model->layout().size() == 3);
  CHECK(model->unlisted() == std::vector<std::string>{"consolidated.safetensors"});
  CHECK(model->decided_by() == "model-00001-of-00003.safetensors");
}

TEST_CASE("model dir: without an index, model.safetensors is the whole model") {
  const TempDir temp;
  for (const char* other : {"adapter_model.safetensors", "consolidated.safetensors"}) {
    WriteFile(temp.path() / other, Shard({"x"}));
  }
  CHECK(ModelDir::Open(temp.path() / "consolidated.safetensors").ok());
  WriteFile(temp.path() / "model.safetensors", Shard({"a"}));
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(model->layout().size() == 1);
  CHECK(model->unlisted().size() == 2);
  CHECK(model->decided_by() == "model.safetensors");
}

TEST_CASE("shards are mapped in the order of their names, tensors in the order of the file") {
  const bool with_index = GENERATE(true, false);
  CAPTURE(with_index);
  TempDir temp;
  WriteSharded(temp.path());
  if (!with_index) fs::remove(temp.path() / kIndex);
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(NamesOf(*model) == std::vector<std::string>{"z", "a", "m"});
  CHECK(model->path() == temp.path());
  for (size_t t = 0; t < 3; ++t) {
    REQUIRE(model->data(t).size() == 5);
    for (size_t i = 0; i < 5; ++i) {
      CHECK(static_cast<char>(model->data(t)[i]) == SampleByte(t, i));
    }
  }
}

TEST_CASE("data stays mapped when the model moves and its files are deleted") {
  TempDir temp;
  const fs::path file = temp.path() / "m.safetensors";
  WriteFile(file, Shard({"a", "b"}));
  auto opened = ModelDir::Open(temp.path());
  REQUIRE(opened.ok());
  const ModelDir model = std::move(*opened);
  fs::remove(file);
  CHECK(static_cast<char>(model.data(1)[4]) == SampleByte(1, 4));
}

TEST_CASE("tensors without bytes have empty data") {
  TempDir temp;
  WriteFile(temp.path() / "m.safetensors",
            FileOfLayout(Make({{"none", DType::kF32, {0, 4}}, {"s", DType::kF64, {}}})));
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(model->data(0).empty());
  CHECK(model->data(1).size() == 8);
}

TEST_CASE("a single file is a model without side files") {
  TempDir temp;
  WriteFile(temp.path() / "one.safetensors", Shard({"a"}));
  WriteFile(temp.path() / "other.safetensors", Shard({"b"}));
  WriteFile(temp.path() / "config.json", "{}");
  const auto model = ModelDir::Open(temp.path() / "one.safetensors");
  REQUIRE(model.ok());
  CHECK(NamesOf(*model) == std::vector<std::string>{"a"});
  CHECK(model->ReadSideFiles().value().empty());
  CHECK_THAT(OpenError(temp.path() / "config.json"),
             Contains("config.json") && Contains("neither a directory nor"));
}

TEST_CASE("hidden files and other formats do not count as shards") {
  TempDir temp;
  WriteFile(temp.path() / "m.safetensors", Shard({"a"}));
  WriteFile(temp.path() / ".m.safetensors", "rubbish");
  WriteFile(temp.path() / "m.safetensors.part", "rubbish");
  WriteFile(temp.path() / "pytorch_model.bin", "rubbish");
  CHECK(ModelDir::Open(temp.path()).ok());
}

TEST_CASE("with an index, files that it does not list are left alone") {
  TempDir temp;
  WriteSharded(temp.path());
  WriteFile(temp.path() / "consolidated.safetensors", Shard({"z", "a", "m"}));
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(model->layout().size() == 3);
  CHECK(model->unlisted() == std::vector<std::string>{"consolidated.safetensors"});
}

TEST_CASE("symbolic links are followed, as download caches need") {
  TempDir temp;
  const fs::path blobs = temp.path() / "blobs";
  const fs::path snapshot = temp.path() / "snapshot";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  WriteFile(blobs / "0123", Shard({"a"}));
  WriteFile(blobs / "4567", "{\"x\":1}");
  fs::create_symlink("../blobs/0123", snapshot / "model.safetensors");
  fs::create_symlink("../blobs/4567", snapshot / "config.json");
  fs::create_directory_symlink(snapshot, temp.path() / "main");
  const auto model = ModelDir::Open(temp.path() / "main");
  REQUIRE(model.ok());
  const auto side = model->ReadSideFiles();
  REQUIRE(side.ok());
  REQUIRE(side->size() == 1);
  CHECK(side->at(0).name == "config.json");
  CHECK(side->at(0).content == "{\"x\":1}");
}

TEST_CASE("a path that cannot be a model is named") {
  TempDir temp;
  CHECK(ModelDir::Open(temp.path() / "gone").status().code() == StatusCode::kNotFound);
  CHECK_THAT(OpenError(temp.path() / "gone"), Contains((temp.path() / "gone").string()));
  CHECK_THAT(OpenError(temp.path()), Contains(temp.path().string()) && Contains("*.safetensors") &&
                                         Contains(std::string(kIndex)));
  fs::create_symlink("loop.safetensors", temp.path() / "loop.safetensors");
  CHECK_THAT(OpenError(temp.path() / "loop.safetensors"),
             Contains("loop.safetensors") && Contains("symbolic link"));
  CHECK_THAT(OpenError(temp.path()), Contains("loop.safetensors") && Contains("symbolic link"));
  fs::remove(temp.path() / "loop.safetensors");
  fs::create_symlink("nowhere", temp.path() / "broken.safetensors");
  CHECK_THAT(OpenError(temp.path()), Contains("broken.safetensors") && Contains("symbolic link"));
  fs::remove(temp.path() / "broken.safetensors");
  fs::create_directory(temp.path() / "dir.safetensors");
  CHECK_THAT(OpenError(temp.path()), Contains("dir.safetensors is not a regular file"));
}

TEST_CASE("a FIFO in place of a shard does not hang the reader") {
  TempDir temp;
  REQUIRE(::mkfifo((temp.path() / "m.safetensors").c_str(), 0600) == 0);
  CHECK_THAT(OpenError(temp.path()), Contains("m.safetensors is not a regular file"));
}

TEST_CASE("damaged shards are named") {
  TempDir temp;
  const std::string good = Shard({"a"});
  const auto [content, says] = GENERATE_COPY(table<std::string, std::string>({
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {good.substr(0, 100), "claims"},
      {good.substr(0, good.size() - 1), "\"a\""},
      {good + "x", "1 bytes after"},
  }));
  WriteFile(temp.path() / "ok.safetensors", Shard({"b"}));
  WriteFile(temp.path() / "torn.safetensors", content);
  CHECK_THAT(OpenError(temp.path()), Contains("torn.safetensors: ") && Contains(says));
}

TEST_CASE("a tensor in two shards is an error that names both") {
  TempDir temp;
  WriteFile(temp.path() / "one.safetensors", Shard({"a", "b"}));
  WriteFile(temp.path() / "two.safetensors", Shard({"c", "b"}));
  CHECK_THAT(OpenError(temp.path()),
             Contains("\"b\"") && Contains("one.safetensors") && Contains("two.safetensors"));
}

TEST_CASE("a file without tensors is not a model") {
  TempDir temp;
  WriteFile(temp.path() / "m.safetensors", FileOfLayout(Make({})));
  CHECK_THAT(OpenError(temp.path()), Contains("holds no tensors"));
}

TEST_CASE("index and shards must agree") {
  TempDir temp;
  WriteSharded(temp.path());
  const std::string two = "model-00002.safetensors";
  SECTION("a shard is missing") {
    fs::remove(temp.path() / two);
    CHECK(ModelDir::Open(temp.path()).status().code() == StatusCode::kNotFound);
    CHECK_THAT(OpenError(temp.path()), Contains(two) && Contains(std::string(kIndex)));
  }
  SECTION("a tensor is missing from its shard") {
    WriteFile(temp.path() / "model-00001.safetensors", Shard({"z"}));
    CHECK_THAT(OpenError(temp.path()),
               Contains("\"a\"") && Contains("absent") && Contains("model-00001.safetensors"));
  }
  SECTION("a tensor is not listed") {
    WriteFile(temp.path() / two, Shard({"m", "extra"}));
    CHECK_THAT(OpenError(temp.path()),
               Contains(two) && Contains("\"extra\"") && Contains("not list"));
  }
  SECTION("a tensor is in another shard") {
    WriteFile(temp.path() / "model-00001.safetensors", Shard({"z"}));
    WriteFile(temp.path() / two, Shard({"m", "a"}));
    CHECK_THAT(OpenError(temp.path()),
               Contains(two) && Contains("\"a\"") && Contains("model-00001.safetensors"));
  }
  SECTION("a tensor is in both shards") {
    WriteFile(temp.path() / two, Shard({"m", "a"}));
    CHECK_THAT(OpenError(temp.path()), Contains("\"a\"") && Contains(two));
  }
  SECTION("the index is damaged") {
    WriteFile(temp.path() / kIndex, "{");
    CHECK_THAT(OpenError(temp.path()), Contains(std::string(kIndex)) && Contains("malformed JSON"));
  }
  SECTION("the index is empty") {
    WriteFile(temp.path() / kIndex, "");
    CHECK_THAT(OpenError(temp.path()), Contains(std::string(kIndex)));
  }
  SECTION("the index leads out of the directory") {
    WriteFile(temp.path() / kIndex, R"({"weight_map":{"a":"../x.safetensors"}})");
    CHECK_THAT(OpenError(temp.path()), Contains("not a plain *.safetensors"));
  }
}

TEST_CASE("names of side files are plain and not those of weights") {
  for (const char* good : {"config.json", "tokenizer.model", "README.md", "merges.txt", "bin",
                           "a..b", "chat template.jinja", "\xc3\xa4.txt", "model.index.json",
                           "modeling_x.py", "safetensors"}) {
    CAPTURE(good);
    CHECK(IsSideFileName(good));
  }
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string(".hidden"),
        std::string("/etc"), std::string("a/b"), std::string("../a"), std::string("a\0b", 3),
        std::string("a\nb"), std::string("a\x7f"), std::string("\xff"), std::string(241, 'n'),
        std::string("m.safetensors"), std::string("m.bin"), std::string("m.pt"),
        std::string("m.pth"), std::string("m.gguf"), std::string(kIndex),
        std::string("x.safetensors.index.json")}) {
    CAPTURE(bad);
    CHECK_FALSE(IsSideFileName(bad));
  }
  CHECK(IsSideFileName(std::string(240, 'n')));
}

TEST_CASE("side files are the regular ones that are not weights, sorted by name") {
  TempDir temp;
  WriteFile(temp.path() / "m.safetensors", Shard({"a"}));
  const std::string binary("\0\xff\n", 3);
  WriteFile(temp.path() / "tokenizer.json", binary);
  WriteFile(temp.path() / "config.json", "{}");
  WriteFile(temp.path() / "empty.txt", "");
  WriteFile(temp.path() / ".hidden", "x");
  WriteFile(temp.path() / "old.bin", "x");
  fs::create_directory(temp.path() / "subdir");
  WriteFile(temp.path() / "subdir" / "deep.json", "x");
  REQUIRE(::mkfifo((temp.path() / "fifo").c_str(), 0600) == 0);
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  const auto files = model->ReadSideFiles();
  REQUIRE(files.ok());
  std::vector<std::pair<std::string, std::string>> got;
  for (const SideFile& f : *files) got.emplace_back(f.name, f.content);
  CHECK(got == std::vector<std::pair<std::string, std::string>>{
                   {"config.json", "{}"}, {"empty.txt", ""}, {"tokenizer.json", binary}});
}

TEST_CASE("weights in other formats are no side files, whatever their size") {
  TempDir temp;
  WriteFile(temp.path() / "model.safetensors", Shard({"a"}));
  WriteFile(temp.path() / "config.json", "{}");
  WriteFile(temp.path() / "training_args.bin", "x");
  const std::vector<std::string> foreign = {
      "flax_model.msgpack", "model.gguf",
      "model.onnx",         "pytorch_model-00001-of-00002.bin",
      "pytorch_model.bin",  "pytorch_model.bin.index.json",
      "rust_model.ot",      "tf_model.h5"};
  for (const std::string& name : foreign) {
    WriteFile(temp.path() / name, "");
    fs::resize_file(temp.path() / name, kMaxSideFileBytes + 1);  // sparse
  }
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  CHECK(model->unlisted().empty());
  std::vector<std::string> left_out;
  const auto files = model->ReadSideFiles(&left_out);
  REQUIRE(files.status() == absl::OkStatus());
  REQUIRE(files->size() == 1);
  CHECK(files->at(0).name == "config.json");
  CHECK(left_out == foreign);
  for (const char* kept : {"vocab.json", "model.index.json", "training_args.bin", "notes.txt"}) {
    CAPTURE(kept);
    CHECK_FALSE(IsForeignWeightFile(kept));
  }
  for (const char* other : {"model.ckpt.index", "tf_model.h5.index.json", "model.onnx_data"}) {
    CAPTURE(other);
    CHECK(IsForeignWeightFile(other));
  }
}

TEST_CASE("side files that are broken or too large are named") {
  TempDir temp;
  WriteFile(temp.path() / "m.safetensors", Shard({"a"}));
  const auto model = ModelDir::Open(temp.path());
  REQUIRE(model.ok());
  const auto sparse = [&](const char* name, uint64_t bytes) {
    WriteFile(temp.path() / name, "");
    fs::resize_file(temp.path() / name, bytes);
  };
  SECTION("broken link") {
    fs::create_symlink("nowhere", temp.path() / "config.json");
    CHECK_THAT(std::string(MessageOf(model->ReadSideFiles().status())), Contains("config.json"));
  }
  SECTION("link to itself") {
    fs::create_symlink("config.json", temp.path() / "config.json");
    CHECK_THAT(std::string(MessageOf(model->ReadSideFiles().status())), Contains("config.json"));
  }
  SECTION("one byte too large") {
    sparse("big.json", kMaxSideFileBytes + 1);
    const auto status = model->ReadSideFiles().status();
    CHECK(status.code() == StatusCode::kResourceExhausted);
    CHECK_THAT(std::string(MessageOf(status)), Contains("big.json"));
  }
  SECTION("too large together") {
    sparse("a.json", kMaxSideFilesTotal / 2);
    sparse("b.json", kMaxSideFilesTotal / 2);
    CHECK(model->ReadSideFiles().ok());
    sparse("c.json", 1);
    const auto status = model->ReadSideFiles().status();
    CHECK(status.code() == StatusCode::kResourceExhausted);
    CHECK_THAT(std::string(MessageOf(status)), Contains("c.json"));
  }
}

std::string ReadAll(const ModelDir& model, size_t tensor) {
  std::string bytes(model.layout().bytes(tensor), '\0');
  const Status read =
      model.Read(tensor, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  return read.ok() ? bytes : std::string(MessageOf(read));
}

TEST_CASE("model dir: read instead of mapped, a file that changes is found out") {
  const TempDir temp;
  const auto layout = Layout::Create({{"a", DType::kBF16, {1000}}, {"b", DType::kF32, {2000}}});
  REQUIRE(layout.ok());
  const fs::path file = temp.path() / "model.safetensors";
  const std::string content = FileOfLayout(*layout);
  WriteFile(file, content);
  const auto model = ModelDir::Open(temp.path(), ModelDir::Access::kRead);
  INFO(MessageOf(model.status()));
  REQUIRE(model.ok());
  for (size_t t = 0; t < 2; ++t) {
    const size_t data = content.size() - layout->total_bytes() + layout->offset(t);
    CHECK(ReadAll(*model, t) == content.substr(data, layout->bytes(t)));
  }
  CHECK(model->Unchanged() == absl::OkStatus());
  const auto changed = [&](const char* how) {
    const Status status = model->Unchanged();
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(MessageOf(status)), Contains(file.string()) && Contains(how));
  };
  SECTION("rewritten in place, its time set back") {
    const auto time = fs::last_write_time(file);
    std::fstream(file, std::ios::binary | std::ios::in | std::ios::out).seekp(-1, std::ios::end)
        << 'x';
    fs::last_write_time(file, time);
    changed("was written to");
  }
  SECTION("replaced by another of the same bytes") {
    WriteFile(temp.path() / "new", content);
    fs::rename(temp.path() / "new", file);
    changed("was replaced");
  }
  SECTION("grown") {
    std::ofstream(file, std::ios::binary | std::ios::app) << 'x';
    changed("has another size");
  }
  SECTION("gone") {
    fs::remove(file);
    changed("was removed");
    CHECK(ReadAll(*model, 0).size() == layout->bytes(0));  // the open descriptor keeps the content
  }
  SECTION("cut short: an error, and no SIGBUS") {
    fs::resize_file(file, content.size() - 1);
    CHECK_THAT(ReadAll(*model, 1), Contains("became shorter") && Contains(file.string()));
    changed("has another size");
  }
}

TEST_CASE("model dir: a changed index is found out") {
  const TempDir temp;
  const auto layout = Layout::Create({{"a", DType::kBF16, {4}}});
  REQUIRE(layout.ok());
  WriteFile(temp.path() / "x.safetensors", FileOfLayout(*layout));
  const fs::path index = temp.path() / kIndex;
  WriteFile(index, R"({"weight_map": {"a": "x.safetensors"}})");
  const auto model = ModelDir::Open(temp.path(), ModelDir::Access::kRead);
  REQUIRE(model.ok());
  CHECK(model->Unchanged() == absl::OkStatus());
  WriteFile(index, R"({"weight_map": {"a": "y.safetensors"}})");
  CHECK_THAT(std::string(MessageOf(model->Unchanged())), Contains(index.string()));
}

}  // namespace
}  // namespace deltawire::model_dir_test
