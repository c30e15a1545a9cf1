#include "tests/simulation/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace deltawire::simulation {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Reader::Reader(const ReceiverNode& receiver, const Ledger& ledger, Random random, uint64_t number)
    : receiver_(receiver),
      ledger_(ledger),
      random_(random),
      name_(fmt::format("reader{} of {}", number, receiver.name)) {}

void Reader::Start() {
  process_ = std::make_shared<Process>(name_);
  Scheduler::current()->Spawn("main", process_, [this] { Run(); });
}

void Reader::Run() {
  while (!stopping_) {
    Scheduler::current()->Sleep(milliseconds(random_.Between(1, 150)));
    Pass();
  }
  process_->Kill();
}

void Reader::Pass() {
  Scheduler& scheduler = *Scheduler::current();
  const std::string path = receiver_.directory() / "model.safetensors";
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    ++missing_;
    // A receiver makes its files anew for another layout and after its machine's start, and hides a
    // file in which memory rotted.
    const bool same = seen_ == receiver_.wipes() && ledger_.layouts() == 1 &&
                      receiver_.boots() == 0 && !receiver_.rotten();
    if (same && receiver_.settings().buffers == 2) {
      scheduler.Fail(name_ + ": the name has gone, with two buffers");
    }
    return;
  }
  seen_ = receiver_.wipes();
  const bool doubted = receiver_.doubted() || receiver_.rotten();
  const uint64_t boots = receiver_.boots(), rots = receiver_.rots();
  struct stat file;
  ::fstat(fd, &file);
  const auto size = static_cast<size_t>(file.st_size);
  void* base = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  // Closes the file as safetensors' loader does; the mapping stays.
  if (random_.Chance(0.5)) {
    ::close(fd);
    fd = -1;
  }
  const bool slow = random_.Chance(0.3);
  // The file's own header says where its data are: the layout may have changed since.
  const Bytes data = DataOf({static_cast<const std::byte*>(base), size});
  Content content(data.size());
  for (size_t done = 0; done < data.size(); done += 512) {
    std::memcpy(content.data() + done, data.data() + done,
                std::min<size_t>(512, data.size() - done));
    scheduler.Sleep(slow ? milliseconds(random_.Between(1, 60))
                         : Time(microseconds(random_.Between(1, 500))));
  }
  ::munmap(base, size);
  if (fd >= 0) ::close(fd);
  ++passes_;
  // Nobody can keep memory that rots, or a disk that lost power, from a reader at once.
  if (doubted || receiver_.rots() != rots || receiver_.boots() != boots) return;
  if (ledger_.Find(content) == nullptr) {
    scheduler.Fail(fmt::format("{} read what is no version:\n{}", name_, ledger_.Explain(content)));
  }
}

}  // namespace deltawire::simulation
