// HTTP/1.1 requests to one address, each on a connection of its own, so that a refused connection,
// or one whose TLS is not the engine's, always means that no engine was asked. One thread calls
// Send; any may call Cancel.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/endpoint.h"
#include "receiver/engine/engine_access.h"

namespace deltawire::receiver {

struct HttpRequest {
  bool post = true;    ///< else GET
  std::string target;  ///< path and query
  std::string body;    ///< JSON; empty: none
};

struct HttpReply {
  /// False: no connection, or no TLS on it, could be made, so the request did not go out.
  bool sent = false;
  bool gone = false;  ///< no process listens at the address
  bool cancelled = false;
  /// 0: no whole answer came; then `error` says why.
  int code = 0;
  std::string body;
  std::string error;
  /// The secrets that went with the request. The files may hold others by now. Null: none.
  std::shared_ptr<const EngineSecrets> secrets;
};

class HttpClient {
 public:
  /// `access`: the secrets for each request, and whether it goes over TLS; null: none.
  HttpClient(const Endpoint& address, std::shared_ptr<EngineAccess> access);
  ~HttpClient();
  /// Blocks for `limit` at most, of which 5 s for the connection.
  HttpReply Send(const HttpRequest& request, std::chrono::milliseconds limit);
  /// Ends a running Send soon, and every later one at once.
  void Cancel();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::receiver
