#include "tests/simulation/host_node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/simulation/bulk.h"
#include "tests/simulation/control.h"
#include "tests/simulation/kernel_calls.h"

namespace deltawire::simulation {

HostNode::HostNode(Network& network, std::string node_name,
                   std::chrono::milliseconds stream_timeout)
    : network_(network) {
  name = std::move(node_name);
  network_.Add(*this);
  listeners["call"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    ServeCall(c);
    --serving_;
  };
  listeners["attach"] = [this](const std::shared_ptr<Connection>& c) {
    ++serving_;
    if (host_ != nullptr) ServeAttachment(c, *host_);
    --serving_;
  };
  listeners["bulk"] = [this, stream_timeout](const std::shared_ptr<Connection>& c) {
    ++serving_;
    const net::PullServer::Options timing{.stream_timeout = stream_timeout,
                                          .ping_interval = std::min<std::chrono::milliseconds>(
                                              std::chrono::milliseconds(5000), stream_timeout / 4)};
    if (source_ != nullptr) ServeBulk(c, *source_, timing);
    --serving_;
  };
}

void HostNode::Reboot(const std::filesystem::path& directory, Random& random) {
  ++boots_;
  std::error_code ignored;
  for (std::filesystem::recursive_directory_iterator it(directory, ignored), end; it != end;
       it.increment(ignored)) {
    if (!it->path().native().ends_with(".safetensors") || !random.Chance(0.5)) continue;
    const int fd = __real_open(it->path().c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    struct stat file;
    if (fd < 0 || ::fstat(fd, &file) != 0) continue;
    // From some byte of the data on, the disk has what it had before.
    const auto at = static_cast<off_t>(random.Between(file.st_size / 2, file.st_size - 1));
    const std::vector<char> zeros(static_cast<size_t>(file.st_size - at));
    [[maybe_unused]] const ssize_t n = ::pwrite(fd, zeros.data(), zeros.size(), at);
    __real_close(fd);
  }
}

void HostNode::AwaitServed(Time limit) {
  Scheduler& scheduler = *Scheduler::current();
  for (network_.BreakAll(name); serving_ > 0; network_.BreakAll(name)) {
    if (scheduler.now() > limit) scheduler.Fail(name + ": its calls do not end at a stop");
    scheduler.Sleep(std::chrono::milliseconds(1));
  }
}

}  // namespace deltawire::simulation
