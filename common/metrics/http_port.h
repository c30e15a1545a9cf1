// A port that answers GET of a few paths over HTTP, one request per connection, each on its own
// thread, so several may call `make` at once. The destructor ends all connections. Connections
// beyond kMost, or beyond kMostOfAddress of one address, are closed at once. A request has 5 s, and
// so has each piece of its answer. Errors are kAlreadyExists for a taken address, kInvalidArgument
// for one that is not ours.
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
  /// `address` is "host:port", with an IPv6 host in brackets.
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
  CondVar cv_;                              // signals the end of a connection
  std::map<int, std::string> connections_;  // peer addresses, by descriptor
};

}  // namespace deltawire::metrics
