#include "common/net/pull_client.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "common/net/byte_stream.h"
#include "common/net/io_impl.h"
#include "common/net/rate_meter.h"
#include "common/net/tcp_facts.h"
#include "common/net/tls.h"

namespace deltawire::net {

// Shared by the caller of Run and the coroutines; the last one frees it.
struct PullClient::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& context, PullTarget t, ResolveHost resolve)
      : io(context),
        target(std::move(t)),
        lookup(std::make_shared<HostLookup>(std::move(resolve))) {}

  asio::io_context& io;
  PullTarget target;  // constant from Run on
  const std::shared_ptr<HostLookup> lookup;
  std::vector<tcp::endpoint> endpoints;  // set before the first stream begins

  mutable std::mutex mu;
  std::condition_variable done;
  size_t running = 0;
  bool cancelled = false;
  // Run hands this to the streams, which may have connected before.
  const wire::Have* have = nullptr;
  ChunkSink* sink = nullptr;
  std::vector<std::shared_ptr<asio::steady_timer>> go;  // per stream; expires when it may continue
  Status status;
  std::optional<PullEnd> end;
  std::vector<std::shared_ptr<tcp::socket>> sockets;
  RateMeter rate;
  double round_trip_seconds = 0;  // the least of the ended streams; 0: unknown

  void Came(size_t bytes) {
    std::lock_guard lock(mu);
    rate.Add(bytes, std::chrono::steady_clock::now());
  }
  void NoteFacts(const TcpFacts& facts) {
    if (facts.round_trip_seconds <= 0) return;
    std::lock_guard lock(mu);
    if (round_trip_seconds == 0 || facts.round_trip_seconds < round_trip_seconds) {
      round_trip_seconds = facts.round_trip_seconds;
    }
  }

  // The first error wins; it closes every stream, so that the others end too.
  void Fail(Status why) {
    std::lock_guard lock(mu);
    if (!status.ok()) return;
    status = std::move(why);
    Go();
    CloseAll();
  }

  /// Starts the streams, which connect and then wait for Go. REQUIRES, here and below: mu held.
  void Spawn(std::vector<tcp::endpoint> to);
  void Go() {
    for (const auto& timer : go) {
      asio::post(timer->get_executor(),
                 [timer] { timer->expires_at(asio::steady_timer::time_point::min()); });
    }
  }

  StatusOr<std::vector<tcp::endpoint>> FindEndpoints() const {
    ErrorCode ec;
    const auto numeric = asio::ip::make_address(target.host, ec);
    if (!ec) return std::vector<tcp::endpoint>{{numeric, target.port}};
    DW_ASSIGN_OR_RETURN(const auto addresses, lookup->Run(target.host, target.stream_timeout));
    std::vector<tcp::endpoint> found;
    for (const std::string& text : addresses) {
      const auto address = asio::ip::make_address(text, ec);
      if (!ec) found.emplace_back(address, target.port);
    }
    if (!found.empty()) return found;
    return Errorf(StatusCode::kUnavailable, "the host {} has no address", target.host);
  }

  void CloseAll() {
    for (const auto& socket : sockets) {
      asio::post(socket->get_executor(), [socket] {
        ErrorCode ignored;
        socket->close(ignored);
      });
    }
  }
};

namespace {

constexpr std::string_view kConnecting = "connecting";

// Returns true when no descriptor is left. The connection then counts as aborted.
bool OutOfDescriptors() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.get() < 0 && (errno == EMFILE || errno == ENFILE);
}

class ClientStream {
 public:
  ClientStream(std::shared_ptr<PullClient::Impl> pull, std::shared_ptr<tcp::socket> socket,
               std::shared_ptr<asio::steady_timer> go, uint16_t index)
      : pull_(std::move(pull)),
        target_(pull_->target),
        socket_(std::move(socket)),
        bytes_(socket_),
        go_(std::move(go)),
        index_(index),
        where_(fmt::format("bulk stream {} from {}:{}", index, target_.host, target_.port)),
        // Sent bytes count too: over a slow link a long Have takes longer than the limit, and no
        // other bytes travel meanwhile.
        watchdog_(
            std::make_shared<Watchdog>(socket_, target_.stream_timeout, Watchdog::Counts::kBoth)) {}

  asio::awaitable<void> Run() {
    watchdog_->Start();
    Status status;
    try {
      status = co_await Exchange();
    } catch (...) {
      status = FromException(where_, std::current_exception());
      LogError("{}", MessageOf(status));
    }
    watchdog_->Stop();
    if (socket_->is_open()) pull_->NoteFacts(TcpFactsOf(socket_->native_handle()));
    bytes_.Close();
    if (!status.ok()) pull_->Fail(status);
  }

 private:
  asio::awaitable<Status> Exchange() {
    Status status = co_await Connect();
    if (!status.ok()) co_return status;
    status = co_await AwaitRun();
    if (!status.ok()) co_return status;
    wire::Hello hello;
    hello.ticket = target_.ticket;
    hello.fingerprint = target_.fingerprint;
    hello.stream = index_;
    hello.streams = target_.streams;
    if (!target_.token.empty()) {
      hello.proof = security::ProveToken(target_.token, hello.ticket, index_, bytes_.binding());
    }
    const auto hello_bytes = wire::Encode(hello);
    status = co_await Send(wire::FrameType::kHello, hello_bytes);
    if (!status.ok()) co_return status;
    // Comes before the answer, which takes a round trip. A sender that rejects the stream does not
    // read all of a long Have, so sending it may fail; the answer has the reason.
    if (index_ == 0) {
      const auto have_bytes = wire::Encode(*have_);
      status = co_await Send(wire::FrameType::kHave, have_bytes);
    }
    auto header = co_await ReadHeader();
    if (!header.ok()) co_return status.ok() ? header.status() : status;
    if (header->type == wire::FrameType::kError) co_return co_await ReadError(*header);
    if (header->type != wire::FrameType::kWelcome) {
      co_return Errorf(StatusCode::kDataLoss, "{}: expected Welcome, got {}", where_,
                       wire::ToString(header->type));
    }
    co_return co_await Receive();
  }

  asio::awaitable<Status> AwaitRun() {
    co_await go_->async_wait(kAwait);
    std::lock_guard lock(pull_->mu);
    if (pull_->status.ok()) {
      sink_ = pull_->sink;
      have_ = pull_->have;
    }
    co_return pull_->status;
  }

  asio::awaitable<Status> Receive() {
    while (true) {
      auto header = co_await ReadHeader();
      if (!header.ok()) co_return header.status();
      switch (header->type) {
        case wire::FrameType::kPing:
          break;
        case wire::FrameType::kChunkFull:
        case wire::FrameType::kChunkDelta: {
          Status status = co_await ReceiveChunk(*header);
          if (!status.ok()) co_return status;
          break;
        }
        case wire::FrameType::kEnd:
          co_return co_await ReceiveEnd(*header);
        case wire::FrameType::kError:
          co_return co_await ReadError(*header);
        default:
          co_return Errorf(StatusCode::kDataLoss, "{}: a {} frame is out of place", where_,
                           wire::ToString(header->type));
      }
    }
  }

  asio::awaitable<Status> ReceiveChunk(const wire::FrameHeader& header) {
    auto to = sink_->Begin(header);
    if (!to.ok()) co_return to.status();
    Status status = co_await ReadPayload(header, *to);
    if (!status.ok()) {
      sink_->Abandon(header);
      co_return status;
    }
    co_return sink_->Finish(header);
  }

  // Reads a payload straight into place and hashes each piece while it is in the cache. A delta's
  // checksum is computed here. A whole chunk has none, and the sink computes its digest.
  asio::awaitable<Status> ReadPayload(const wire::FrameHeader& header, MutableBytes to) {
    constexpr size_t kPiece = size_t{1} << 20;
    constexpr size_t kWakeUpFor = size_t{512} << 10;
    constexpr size_t kMostReadAhead = size_t{17} << 10;  // a TLS record has at most 16 KiB + 256
    const bool has_checksum = header.type != wire::FrameType::kChunkFull;
    hash_.Reset();
    for (size_t done = 0; done < to.size();) {
      watchdog_->Feed();
      // A wake-up costs as much as copying tens of kilobytes, so ask the kernel to wait for more
      // bytes, but never for more than the payload still needs: those would never come.
      const size_t of_socket = to.size() - done;
      // TLS may have read part of a record ahead, and those bytes are no longer the socket's.
      const size_t surely = !bytes_.encrypted()          ? of_socket
                            : of_socket > kMostReadAhead ? of_socket - kMostReadAhead
                                                         : 1;
      SetLowWatermark(std::min(kWakeUpFor, surely));
      auto [ec, n] = co_await bytes_.ReadSome(
          asio::buffer(to.data() + done, std::min(kPiece, to.size() - done)));
      if (ec) co_return Failure("reading a chunk", ec);
      pull_->Came(n);
      if (has_checksum) hash_.Update(to.subspan(done, n));
      done += n;
      sink_->Arrived(header, done);
    }
    SetLowWatermark(1);
    if (!has_checksum) co_return absl::OkStatus();
    co_return Annotate(wire::CheckPayload(header, hash_.Digest()), where_);
  }

  void SetLowWatermark(size_t bytes) {
    if (bytes == low_watermark_) return;
    low_watermark_ = bytes;
    ErrorCode ignored;
    socket_->set_option(asio::socket_base::receive_low_watermark(static_cast<int>(bytes)), ignored);
  }

  asio::awaitable<Status> ReceiveEnd(const wire::FrameHeader& header) {
    std::array<std::byte, wire::kEndPayload> payload;
    const Bytes bytes = Bytes(payload).first(header.payload_bytes);
    watchdog_->Feed();
    auto [ec, n] = co_await bytes_.ReadAll(asio::buffer(payload.data(), header.payload_bytes));
    if (ec) co_return Failure("reading the end", ec);
    Status status = wire::CheckPayload(header, Xxh3(bytes));
    if (!status.ok()) co_return Annotate(status, where_);
    const auto end = wire::DecodeEnd(bytes);
    if (!end.ok()) co_return Annotate(end.status(), where_);
    co_return AgreeOnEnd({.identity = {.lineage = end->lineage,
                                       .id = {header.epoch, header.version},
                                       .root = end->root,
                                       .attempt = end->attempt},
                          .side_files_hash = end->side_files_hash});
  }

  Status AgreeOnEnd(const PullEnd& end) {
    std::lock_guard lock(pull_->mu);
    if (pull_->end.has_value() && (pull_->end->identity != end.identity ||
                                   pull_->end->identity.attempt != end.identity.attempt ||
                                   pull_->end->side_files_hash != end.side_files_hash)) {
      return Errorf(StatusCode::kDataLoss, "{}: ends at {}, another stream at {}", where_,
                    DescribeFully(end.identity), DescribeFully(pull_->end->identity));
    }
    pull_->end = end;
    return absl::OkStatus();
  }

  asio::awaitable<Status> Connect() {
    watchdog_->Feed();
    // Connecting opens the socket, so an earlier close has no effect.
    if (std::lock_guard lock(pull_->mu); !pull_->status.ok()) co_return pull_->status;
    const ErrorCode connect_ec = co_await ConnectToFirst();
    if (connect_ec) co_return Failure(kConnecting, connect_ec);
    // Each further address opens the socket again, too.
    if (watchdog_->fired()) co_return Failure(kConnecting, asio::error::timed_out);
    if (std::lock_guard lock(pull_->mu); !pull_->status.ok()) co_return pull_->status;
    TuneSocket(socket_->native_handle(), target_.sockets);
    if (target_.tls == nullptr) co_return absl::OkStatus();
    auto context = target_.tls->Now();
    if (!context.ok()) co_return context.status();
    const ErrorCode tls_ec = co_await bytes_.Connect(std::move(*context), target_.host);
    if (tls_ec) co_return Failure("TLS handshake", tls_ec);
    co_return absl::OkStatus();
  }

  // async_connect of all endpoints opens the socket by itself, but its memory has to be set between
  // the open and the connect.
  asio::awaitable<ErrorCode> ConnectToFirst() {
    ErrorCode ec = asio::error::not_found;
    for (const tcp::endpoint& endpoint : pull_->endpoints) {
      ErrorCode ignored;
      socket_->close(ignored);
      socket_->open(endpoint.protocol(), ec);
      if (ec && OutOfDescriptors()) co_return asio::error::operation_aborted;
      if (ec) continue;
      FitSocket(socket_->native_handle(), SocketEnd::kReceiver, target_.link, target_.streams);
      std::tie(ec) = co_await socket_->async_connect(endpoint, kAwait);
      if (!ec || watchdog_->fired()) break;
      if (std::lock_guard lock(pull_->mu); !pull_->status.ok()) break;
    }
    co_return ec;
  }

  asio::awaitable<Status> Send(wire::FrameType type, Bytes payload) {
    wire::FrameHeader header;
    header.type = type;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_xxh3 = Xxh3(payload);
    const wire::HeaderBytes bytes = wire::EncodeHeader(header);
    watchdog_->Feed();
    const ErrorCode ec =
        co_await bytes_.Write(asio::buffer(bytes), asio::buffer(payload.data(), payload.size()));
    // A server that rejects the stream may close it before reading everything. The error is then in
    // its Error frame, which is read next.
    if (ec && ec != asio::error::broken_pipe && ec != asio::error::connection_reset) {
      co_return Failure("sending", ec);
    }
    co_return absl::OkStatus();
  }

  asio::awaitable<StatusOr<wire::FrameHeader>> ReadHeader() {
    wire::HeaderBytes bytes;
    watchdog_->Feed();
    auto [ec, n] = co_await bytes_.ReadAll(asio::buffer(bytes));
    if (ec) co_return Failure("waiting for a frame", ec);
    auto header = wire::DecodeHeader(bytes);
    if (!header.ok()) co_return Annotate(header.status(), where_);
    co_return header;
  }

  asio::awaitable<Status> ReadError(const wire::FrameHeader& header) {
    std::vector<std::byte> payload(header.payload_bytes);
    auto [ec, n] = co_await bytes_.ReadAll(asio::buffer(payload));
    if (ec) co_return Failure("reading an error", ec);
    const Status status = wire::CheckPayload(header, Xxh3(payload));
    if (!status.ok()) co_return Annotate(status, where_);
    auto error = wire::DecodeWireError(payload);
    if (!error.ok()) co_return Annotate(error.status(), where_);
    co_return Annotate(wire::ToStatus(*error), "the sender refused");
  }

  Status Failure(std::string_view doing, const ErrorCode& ec) const {
    if (ec == asio::error::operation_aborted && !socket_->is_open() && OutOfDescriptors()) {
      return Errorf(StatusCode::kResourceExhausted,
                    "{}: {}: no descriptor is left for a socket; raise the limit of open files "
                    "(ulimit -n, or LimitNOFILE= of the unit)",
                    where_, doing);
    }
    if (watchdog_->fired()) {
      return Errorf(StatusCode::kDeadlineExceeded, "{}: {}: no bytes arrived for {} ms{}", where_,
                    doing, watchdog_->limit().count(),
                    doing == kConnecting ? "; is that port open to this machine? `deltawire doctor "
                                           "--sender` tries it"
                                         : "");
    }
    if (!bytes_.fault().empty()) {
      return Errorf(StatusCode::kUnauthenticated, "{}: {}: {}", where_, doing, bytes_.fault());
    }
    return FromAsio(fmt::format("{}: {}", where_, doing), ec);
  }

  std::shared_ptr<PullClient::Impl> pull_;
  const PullTarget& target_;
  std::shared_ptr<tcp::socket> socket_;
  ByteStream bytes_;
  const std::shared_ptr<asio::steady_timer> go_;
  const uint16_t index_;
  const wire::Have* have_ = nullptr;  // these two from AwaitRun on
  ChunkSink* sink_ = nullptr;
  const std::string where_;
  std::shared_ptr<Watchdog> watchdog_;
  Xxh3Stream hash_;
  size_t low_watermark_ = 1;
};

asio::awaitable<void> RunStream(std::shared_ptr<PullClient::Impl> pull,
                                std::shared_ptr<tcp::socket> socket,
                                std::shared_ptr<asio::steady_timer> go, uint16_t index) {
  ClientStream stream(pull, socket, std::move(go), index);
  co_await stream.Run();
}

}  // namespace

void PullClient::Impl::Spawn(std::vector<tcp::endpoint> to) {
  endpoints = std::move(to);
  sockets.clear();
  go.clear();
  for (uint16_t i = 0; i < target.streams; ++i) {
    sockets.push_back(std::make_shared<tcp::socket>(asio::make_strand(io)));
    go.push_back(std::make_shared<asio::steady_timer>(sockets[i]->get_executor(),
                                                      asio::steady_timer::time_point::max()));
  }
  running = sockets.size();
  for (uint16_t i = 0; i < target.streams; ++i) {
    asio::co_spawn(sockets[i]->get_executor(), RunStream(shared_from_this(), sockets[i], go[i], i),
                   [pull = shared_from_this()](const std::exception_ptr& thrown) {
                     if (thrown) pull->Fail(FromException("bulk stream", thrown));
                     std::lock_guard ended(pull->mu);
                     if (--pull->running == 0) pull->done.notify_all();
                   });
  }
}

PullClient::PullClient(IoThreads& io, PullTarget target, ResolveHost resolve)
    : impl_(std::make_shared<Impl>(io.impl().context, std::move(target), std::move(resolve))) {}

PullClient::~PullClient() {
  // Streams for which Run was never called must not stay connected.
  impl_->Fail(absl::CancelledError("the pull was discarded"));
}

void PullClient::Connect() {
  ErrorCode ec;
  const auto address = asio::ip::make_address(impl_->target.host, ec);
  if (ec) return;
  std::lock_guard lock(impl_->mu);
  if (!impl_->cancelled) impl_->Spawn({{address, impl_->target.port}});
}

void PullClient::SetTicket(const wire::Ticket& ticket) {
  std::lock_guard lock(impl_->mu);
  impl_->target.ticket = ticket;
}

StatusOr<PullEnd> PullClient::Run(const wire::Have& have, ChunkSink& sink) {
  const auto ended = [this] { return impl_->running == 0; };
  std::unique_lock lock(impl_->mu);
  const bool connected = !impl_->sockets.empty() && impl_->status.ok();
  if (!connected && !impl_->cancelled) {
    // The early Connect may have failed, e.g. because the sender did not run yet.
    impl_->done.wait(lock, ended);
    lock.unlock();
    auto endpoints = impl_->FindEndpoints();
    lock.lock();
    if (!impl_->cancelled) {
      if (!endpoints.ok()) return Annotate(endpoints.status(), "bulk streams");
      impl_->status = absl::OkStatus();
      impl_->Spawn(std::move(*endpoints));
    }
  }
  if (!impl_->cancelled) {
    impl_->have = &have;
    impl_->sink = &sink;
    impl_->Go();
  }
  impl_->done.wait(lock, ended);
  if (impl_->cancelled) return absl::CancelledError("the pull was cancelled");
  if (!impl_->status.ok()) return impl_->status;
  return *impl_->end;
}

LinkSample PullClient::link() const {
  std::lock_guard lock(impl_->mu);
  return {
      .link = {.round_trip_seconds = impl_->round_trip_seconds, .bytes_per_s = impl_->rate.best()},
      .seconds = impl_->rate.seconds(),
      .streams = impl_->target.streams};
}

void PullClient::Cancel() {
  {
    std::lock_guard lock(impl_->mu);
    impl_->cancelled = true;
  }
  impl_->lookup->Cancel();
  impl_->Fail(absl::CancelledError("the pull was cancelled"));
}

}  // namespace deltawire::net
