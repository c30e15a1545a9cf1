// The HTTP server of a stand-in for an engine: a connection a request, on loopback, with or without
// TLS. What is answered, its owner says. Owner: an EngineStandIn. Threads: Start and Stop from one;
// the handler is called on threads of the server's own, for several connections at once. Cost:
// these threads. Errors: a port that cannot be bound throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace deltawire::testing {

struct StandInRequest {
  bool post = true;  ///< else GET
  std::string target, content_type, authorization, body;
};

struct StandInReply {
  enum class How : uint8_t {
    kAnswer,
    kHang,  ///< no answer until the caller goes
    kCut,   ///< the connection is closed
  };
  How how = How::kAnswer;
  int code = 200;
  std::string body;
};

class StandInServer {
 public:
  using Handler = std::function<StandInReply(const StandInRequest&)>;

  explicit StandInServer(Handler handler);
  ~StandInServer();

  /// Listens at the same port as ever.
  void Start();
  /// Connections are cut, and new ones refused. The handler must be able to return.
  void Stop();
  bool started() const;

  std::string url() const;  ///< "http://127.0.0.1:PORT", or https
  /// From the next Start on: TLS, with this certificate and key in PEM.
  void SpeakTls(const std::string& certificate, const std::string& key);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deltawire::testing
