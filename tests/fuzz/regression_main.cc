// Stands in for libFuzzer where it is not built in: runs a fuzz target over its corpus and over
// seeded mutations of it, the same inputs every time. One thread; the target aborts on a finding,
// and then the line that repeats it is printed.
//   TARGET [--mutations N] [--first K] [--seed S] CORPUS_FILE_OR_FOLDER...
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Present only under a sanitizer, which may end the program without a signal.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kMaxInputBytes = 1 << 20;

// The line that a crash handler prints. It is written before each run, since a handler must not
// allocate.
char g_running[4096];

void PrintRunning() {
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, g_running, strlen(g_running));
}

void OnFatalSignal(int signal_number) {
  PrintRunning();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void RunOne(const Input& input) {
  // The copy has exactly the input's size, so that a sanitizer sees a read of one byte too many.
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

// One change of the kinds that find decoder bugs. `other` is a second corpus file to splice from.
void MutateOnce(std::mt19937_64& rng, const Input& other, Input& input) {
  const auto below = [&rng](size_t n) { return n == 0 ? 0 : static_cast<size_t>(rng() % n); };
  constexpr uint8_t kInteresting[] = {0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff, '"', '{', '}'};
  const size_t at = below(input.size());
  const auto pos = input.begin() + static_cast<ptrdiff_t>(at);
  const size_t run = std::min<size_t>(input.size() - at, 1 + below(16));
  switch (input.empty() ? 5 : below(8)) {
    case 0:
      input[at] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 1:
      input[at] = kInteresting[below(std::size(kInteresting))];
      break;
    case 2:
      input[at] = static_cast<uint8_t>(rng());
      break;
    case 3:
      input.erase(pos, pos + static_cast<ptrdiff_t>(run));
      break;
    case 4: {
      const Input copy(pos, pos + static_cast<ptrdiff_t>(run));
      input.insert(pos, copy.begin(), copy.end());
      break;
    }
    case 5:
      input.insert(pos, 1 + below(8), static_cast<uint8_t>(rng()));
      break;
    case 6:
      input.resize(at);
      break;
    default: {
      const size_t from = below(other.size());
      const size_t count = below(other.size() - from + 1);
      input.resize(at);
      input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from),
                   other.begin() + static_cast<ptrdiff_t>(from + count));
    }
  }
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
}

std::vector<std::filesystem::path> CorpusFiles(const std::vector<std::string>& arguments) {
  std::vector<std::filesystem::path> files;
  for (const std::string& argument : arguments) {
    if (!std::filesystem::is_directory(argument)) {
      files.emplace_back(argument);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argument)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());  // mutations depend on the order
  return files;
}

Input ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "cannot read the corpus file %s\n", path.c_str());
    std::exit(2);
  }
  return Input(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

struct Arguments {
  uint64_t mutations = 0;
  uint64_t first = 0;
  uint64_t seed = 1;
  std::vector<std::string> paths;
};

Arguments Parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    uint64_t* number = word == "--mutations" ? &out.mutations
                       : word == "--first"   ? &out.first
                       : word == "--seed"    ? &out.seed
                                             : nullptr;
    if (number == nullptr) {
      out.paths.emplace_back(word);
    } else if (i + 1 < argc) {
      *number = std::strtoull(argv[++i], nullptr, 10);
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  const auto files = CorpusFiles(arguments.paths);
  if (files.empty()) {
    std::fprintf(stderr, "no corpus file given or found: a run over nothing would prove nothing\n");
    return 2;
  }
  for (int fatal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(fatal, OnFatalSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(PrintRunning);

  std::vector<Input> corpus;
  for (const auto& file : files) {
    corpus.push_back(ReadFile(file));
    std::snprintf(g_running, sizeof(g_running), "\nrepeat with: %s %s\n", argv[0], file.c_str());
    RunOne(corpus.back());
  }
  const uint64_t last = arguments.first + arguments.mutations;
  for (uint64_t k = arguments.first; k < last; ++k) {
    // Each mutation has its own generator, so that one can be repeated without those before it.
    std::seed_seq seeds{arguments.seed, k};
    std::mt19937_64 rng(seeds);
    Input input = corpus[rng() % corpus.size()];
    const uint64_t changes = 1 + rng() % 4;
    for (uint64_t c = 0; c < changes; ++c) MutateOnce(rng, corpus[rng() % corpus.size()], input);
    std::snprintf(g_running, sizeof(g_running),
                  "\nrepeat with: %s --seed %llu --first %llu --mutations 1 <the same corpus>\n",
                  argv[0], static_cast<unsigned long long>(arguments.seed),
                  static_cast<unsigned long long>(k));
    RunOne(input);
  }
  std::printf("%zu corpus files and %llu mutations (seed %llu) passed\n", files.size(),
              static_cast<unsigned long long>(arguments.mutations),
              static_cast<unsigned long long>(arguments.seed));
  return 0;
}
