#include "common/net/io_threads.h"

#include <signal.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/net/io_impl.h"

namespace deltawire::net {

IoThreads::IoThreads(size_t threads) : impl_(std::make_unique<Impl>()) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 0; i < threads; ++i) {
    impl_->threads.emplace_back([this] {
      // OpenSSL writes to sockets without MSG_NOSIGNAL. A peer that has gone must not kill a
      // program that does not ignore SIGPIPE. A blocked signal stays pending.
      sigset_t broken_pipe;
      sigemptyset(&broken_pipe);
      sigaddset(&broken_pipe, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
      // Streams catch their own exceptions. One that arrives here comes from a single handler, so
      // the thread continues to serve the other streams.
      while (true) {
        try {
          impl_->context.run();
          return;
        } catch (...) {
          LogError("{}", MessageOf(FromException("bulk streams", std::current_exception())));
        }
      }
    });
  }
}

IoThreads::~IoThreads() { Stop(); }

void IoThreads::Stop() {
  impl_->work.reset();
  impl_->context.stop();
  for (auto& t : impl_->threads) {
    if (t.joinable()) t.join();
  }
}

}  // namespace deltawire::net
