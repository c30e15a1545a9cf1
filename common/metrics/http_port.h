// A port that answers GET of a few paths over HTTP, one request a connection, from a thread each.
// Owner: metrics::Server; the destructor ends all connections. Threads: its own call `make`,
// several at once. Cost: kMost connections, kMostOfAddress of one address; others are closed at
// once. They have 5 s for the request, and for each piece of its answer. Errors: kAlreadyExists
// when the address is taken, kInvalidArgument when it is none of ours.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/acceptor.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire::metrics {

class HttpPort {
 public:
  static constexpr size_t kMost = 16, kMostOfAddress = 4;

  struct Resource {
    std::string path;
    std::string headers;  ///< lines, each with its end
    std::function<std::string()> make;
  };
  /// `address` is "host:port", where an IPv6 host stands in brackets.
  static StatusOr<std::unique_ptr<HttpPort>> Listen(const std::string& address,
                                                    std::vector<Resource> resources);
  ~HttpPort();

 private:
  explicit HttpPort(std::vector<Resource> resources) : resources_(std::move(resources)) {}
  void Take(int fd);
  void Serve(int fd) const;
  std::string AnswerTo(std::string_view request) const;

  const std::vector<Resource> resources_;
  std::unique_ptr<Acceptor> acceptor_;
  Mutex mu_;
  CondVar cv_;                              // a connection has ended
  std::map<int, std::string> connections_;  // the peer's address, by descriptor
};

}  // namespace deltawire::metrics
