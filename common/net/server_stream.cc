#include "common/net/server_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/log.h"
#include "common/net/tcp_facts.h"
#include "common/net/tls.h"
#include "common/net/tune_socket.h"

namespace deltawire::net {
namespace {

// Time for the Error frame to arrive and for the peer to close.
constexpr std::chrono::milliseconds kErrorGrace{1000};

// A peer has nothing to send after the end. The stream does not wait for one that sends more than
// this.
constexpr size_t kMostIgnored = size_t{64} << 10;

// A stream that waits for its turn checks at this interval whether it was closed.
constexpr std::chrono::milliseconds kLookAgain{200};

// The same for one that is held back, which also checks whether it still is.
constexpr std::chrono::milliseconds kLookForOthers{25};

// The session is notified of arrived bytes whenever this many more were sent, because asking the
// kernel costs a system call.
constexpr uint64_t kTellEvery = uint64_t{256} << 10;

// First byte of every TLS connection: a record of type handshake.
constexpr std::byte kTlsHandshake{0x16};

}  // namespace

void Connection::Close() {
  asio::post(socket.get_executor(), [self = shared_from_this()] {
    self->closed = true;
    ErrorCode ignored;
    self->socket.close(ignored);
    self->idle.cancel();
  });
}

void Connection::Cut() {
  asio::post(socket.get_executor(), [self = shared_from_this()] {
    if (std::exchange(self->cut, true)) return;
    if (self->hurry) self->hurry();
    self->idle.cancel();
    ErrorCode ignored;
    if (self->reading) self->socket.cancel(ignored);
  });
}

ServerStream::ServerStream(std::shared_ptr<Connection> connection, PullSource& source,
                           const PullServer::Options& options, TokenBucket& rate, Status refusal)
    : connection_(std::move(connection)),
      socket_(connection_, &connection_->socket),
      bytes_(socket_),
      source_(source),
      options_(options),
      rate_(rate),
      refusal_(std::move(refusal)),
      peer_(PeerName(*socket_)),
      watchdog_(std::make_shared<Watchdog>(socket_, options.stream_timeout,
                                           Watchdog::Counts::kAcknowledged)) {
  rate_.Join();
  connection_->hurry = [watchdog = watchdog_, grace = options.cut_grace] {
    watchdog->EndAfter(grace);
  };
}

// In the destructor, since a coroutine may be destroyed before its end.
ServerStream::~ServerStream() {
  connection_->hurry = nullptr;
  rate_.Leave();
  ShareRates(&TokenBucket::Leave);
}

asio::awaitable<void> ServerStream::Run() {
  TuneSocket(socket_->native_handle(), options_.sockets);
  watchdog_->Start();
  Status status;
  try {
    status = co_await Exchange();
  } catch (...) {
    status = FromException("serving a bulk stream", std::current_exception());
    LogError("bulk stream from {}: {}", peer_, MessageOf(status));
  }
  if (connection_->cut && !status.ok()) status = WhyCut();
  if (session_ != nullptr && socket_->is_open()) {
    untold_ = kTellEvery;
    TellMoved();
    session_->Measured(TcpFactsOf(socket_->native_handle()));
  }
  TellSession(status);
  // Close the session's stream before SendError: it no longer needs the half, so a waiting trainer
  // need not wait until the peer has read the error.
  if (!status.ok() && socket_->is_open()) co_await SendError(status);
  watchdog_->Stop();
  bytes_.Close();
  if (!status.ok()) LogDebug("bulk stream from {}: {}", peer_, MessageOf(status));
}

asio::awaitable<Status> ServerStream::Exchange() {
  // A rejection uses the peer's protocol, so plaintext needs no handshake first.
  if (!refusal_.ok() && options_.tls == nullptr) co_return refusal_;
  Status status = co_await AwaitFirstByte();
  if (!status.ok()) co_return status;
  status = co_await Secure();
  if (!status.ok()) co_return status;
  if (!refusal_.ok()) co_return refusal_;
  std::vector<std::byte> payload;
  auto header = co_await ReadHeader(wire::FrameType::kHello);
  if (!header.ok()) co_return header.status();
  status = co_await ReadPayload(*header, payload);
  if (!status.ok()) co_return status;
  watchdog_->Resume();
  auto hello = wire::DecodeHello(payload);
  if (!hello.ok()) co_return hello.status();
  auto joined = source_.Join(
      *hello,
      {.address = peer_, .certificate_names = bytes_.peer_names(), .binding = bytes_.binding()});
  if (!joined.ok()) co_return joined.status();
  session_ = std::move(*joined);
  ShareRates(&TokenBucket::Join);
  FitToLink(hello->streams);
  stream_ = hello->stream;
  session_->StreamOpened(stream_, [weak = std::weak_ptr(connection_)] {
    if (auto connection = weak.lock()) connection->Cut();
  });
  status = co_await SendBare(wire::FrameType::kWelcome);
  if (!status.ok()) co_return status;
  if (stream_ == 0) {
    status = co_await ReceiveHave();
    if (!status.ok()) co_return status;
  }
  co_return co_await SendAll();
}

void ServerStream::FitToLink(uint16_t streams) {
  // The round trip is this connection's own, which its handshake has just measured.
  LinkFigures link = session_->link();
  link.round_trip_seconds = TcpFactsOf(socket_->native_handle()).round_trip_seconds;
  FitSocket(socket_->native_handle(), SocketEnd::kSender, link, streams);
}

// A silent connection occupies a descriptor, so the timeouts are short until its Hello has arrived.
asio::awaitable<Status> ServerStream::AwaitFirstByte() {
  watchdog_->EndAfter(std::min(options_.first_byte_timeout, options_.stream_timeout));
  auto [ec] = co_await socket_->async_wait(tcp::socket::wait_read, kAwait);
  if (ec) co_return Failure("waiting for a first byte", ec);
  watchdog_->EndAfter(std::min(options_.hello_timeout, options_.stream_timeout));
  co_return absl::OkStatus();
}

asio::awaitable<Status> ServerStream::Secure() {
  std::byte first{};
  // The byte is there, so this does not block, and the peek leaves it for the next read.
  if (recv(socket_->native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
    co_return absl::UnavailableError("the peer closed the connection before it sent a byte");
  }
  const bool speaks_tls = first == kTlsHandshake;
  if (options_.tls == nullptr) {
    if (!speaks_tls) co_return absl::OkStatus();
    socket_->close();  // the peer would not understand an Error frame
    co_return absl::FailedPreconditionError(
        "the peer speaks TLS, and this port does not: give the sender --credentials");
  }
  if (!speaks_tls) {
    co_return absl::UnauthenticatedError(
        "this port speaks TLS only: give the receiver --credentials with the sender's `ca`");
  }
  auto context = options_.tls->Now();
  if (!context.ok()) co_return context.status();
  const ErrorCode ec = co_await bytes_.Accept(std::move(*context));
  if (ec) co_return Failure("TLS handshake", ec);
  co_return absl::OkStatus();
}

asio::awaitable<Status> ServerStream::ReceiveHave() {
  auto header = co_await ReadHeader(wire::FrameType::kHave);
  if (!header.ok()) co_return header.status();
  Status status = wire::CheckHaveSize(header->payload_bytes, session_->chunks());
  if (!status.ok()) co_return status;
  std::vector<std::byte> payload;
  // Over a slow link a long Have takes longer than the limit. Its size is bounded, and so is its
  // deadline (ServedPull::CutIfLate).
  watchdog_->Count(Watchdog::Counts::kReceived);
  status = co_await ReadPayload(*header, payload);
  watchdog_->Count(Watchdog::Counts::kAcknowledged);
  if (!status.ok()) co_return status;
  auto have = wire::DecodeHave(payload, session_->chunks());
  payload = {};
  if (!have.ok()) co_return have.status();
  co_return session_->Start(*have);
}

asio::awaitable<Status> ServerStream::SendAll() {
  while (true) {
    if (connection_->cut) co_return WhyCut();
    connection_->woken = false;
    // The session may call this from any thread, even after this coroutine has ended.
    auto next = session_->Next(stream_, [connection = connection_] {
      asio::post(connection->socket.get_executor(), [connection] {
        connection->woken = true;
        connection->idle.cancel();
      });
    });
    if (!next.ok()) co_return next.status();
    if (next->has_value()) {
      const bool last = (*next)->header.type == wire::FrameType::kEnd;
      Status sent = co_await Send(**next);
      if (!sent.ok()) co_return sent;
      if (!last) continue;
      watchdog_->Feed();
      co_await AwaitClose();
      co_return absl::OkStatus();
    }
    const uint64_t queued = QueuedBytesOf(socket_->native_handle());
    // A wake, a cut or a close may have been posted already; this post runs them first.
    co_await asio::post(socket_->get_executor(), asio::use_awaitable);
    const auto interrupted = [this] {
      return connection_->woken || connection_->closed || connection_->cut;
    };
    if (!interrupted()) {
      connection_->idle.expires_after(options_.ping_interval);
      co_await connection_->idle.async_wait(kAwait);
    }
    if (connection_->closed) co_return absl::CancelledError("the stream was closed");
    session_->Waited(stream_, queued, QueuedBytesOf(socket_->native_handle()));
    if (interrupted()) continue;
    Status sent = co_await SendBare(wire::FrameType::kPing);
    if (!sent.ok()) co_return sent;
  }
}

// The receiver must close first: closing with an unread byte of it would send a reset.
asio::awaitable<void> ServerStream::AwaitClose() {
  std::array<std::byte, 4096> ignored;
  ErrorCode ec;
  size_t n = 0, swallowed = 0;
  while (!ec && swallowed <= kMostIgnored) {
    swallowed += n;
    std::tie(ec, n) = co_await bytes_.ReadSome(asio::buffer(ignored));
  }
}

asio::awaitable<Status> ServerStream::Send(const OutFrame& frame) {
  const wire::HeaderBytes header = wire::EncodeHeader(frame.header);
  watchdog_->Feed();
  // Payloads go out in pieces, so that the watchdog sees progress.
  size_t done = std::min(PieceBytes(), frame.payload.size());
  // Pings and errors are small and must not be late, so only frames with payload wait.
  const bool waits = frame.header.type != wire::FrameType::kError && !frame.payload.empty();
  if (waits) {
    const Status turn = co_await AwaitTurn(header.size() + done);
    if (!turn.ok()) co_return turn;
  }
  ErrorCode ec =
      co_await bytes_.Write(asio::buffer(header), asio::buffer(frame.payload.data(), done));
  untold_ += header.size() + done;
  TellMoved();
  while (!ec && done < frame.payload.size()) {
    const size_t piece = std::min(PieceBytes(), frame.payload.size() - done);
    if (waits) {
      // No `?:` here: gcc 12 destroys the result of a co_await in it twice.
      const Status turn = co_await AwaitTurn(piece);
      if (!turn.ok()) co_return turn;
    }
    watchdog_->Feed();
    ec = co_await bytes_.Write(asio::buffer(frame.payload.data() + done, piece));
    done += piece;
    untold_ += piece;
    TellMoved();
  }
  if (ec) co_return Failure("sending", ec);
  co_return absl::OkStatus();
}

void ServerStream::ShareRates(void (TokenBucket::*change)()) const {
  if (session_ == nullptr) return;
  for (TokenBucket* const own : session_->rates()) {
    if (own != nullptr) (own->*change)();
  }
}

size_t ServerStream::PieceBytes() const {
  constexpr size_t kMost = size_t{512} << 10;
  size_t piece = rate_.PieceBytes(kMost);
  if (session_ == nullptr) return piece;
  for (const TokenBucket* const own : session_->rates()) {
    if (own != nullptr) piece = own->PieceBytes(piece);
  }
  Pacing* const pacing = session_->pacing();
  return pacing == nullptr ? piece : pacing->PieceBytes(piece);
}

asio::awaitable<Status> ServerStream::AwaitTurn(size_t bytes) {
  const Status others = co_await AwaitOthers(bytes);
  if (!others.ok()) co_return others;
  std::chrono::nanoseconds wait = rate_.Take(bytes);
  const auto own = session_ == nullptr ? std::array<TokenBucket*, 2>() : session_->rates();
  for (TokenBucket* const one : own) {
    if (one != nullptr) wait = std::max(wait, one->Take(bytes));
  }
  if (wait.count() == 0) co_return absl::OkStatus();
  co_return co_await AwaitUntil(std::chrono::steady_clock::now() + wait, kLookAgain,
                                [] { return true; });
}

asio::awaitable<Status> ServerStream::AwaitOthers(size_t bytes) {
  Pacing* const pacing = session_ == nullptr ? nullptr : session_->pacing();
  const auto wait = pacing == nullptr ? std::chrono::nanoseconds(0) : pacing->WaitFor(bytes);
  if (wait.count() == 0) co_return absl::OkStatus();
  const auto began = std::chrono::steady_clock::now();
  const Status status =
      co_await AwaitUntil(began + wait, kLookForOthers, [pacing] { return pacing->IsHeldBack(); });
  pacing->AddWait(std::chrono::steady_clock::now() - began);
  co_return status;
}

asio::awaitable<Status> ServerStream::AwaitUntil(std::chrono::steady_clock::time_point until,
                                                 std::chrono::milliseconds look,
                                                 std::function<bool()> still) {
  while (std::chrono::steady_clock::now() < until && still()) {
    if (connection_->closed) co_return absl::CancelledError("the stream was closed");
    if (!socket_->is_open()) co_return Failure("sending", asio::error::operation_aborted);
    if (connection_->cut) break;  // the rest of this frame has little time
    watchdog_->Feed();
    // A wake or a cut may cancel the timer, which changes nothing here.
    connection_->idle.expires_at(std::min(until, std::chrono::steady_clock::now() + look));
    co_await connection_->idle.async_wait(kAwait);
  }
  co_return absl::OkStatus();
}

void ServerStream::TellMoved() {
  // The kernel has no count for a socket that was closed meanwhile, as for a receiver that has
  // gone.
  if (session_ == nullptr || untold_ < kTellEvery || !socket_->is_open()) return;
  untold_ = 0;
  const uint64_t moved = MovedBytesOf(socket_->native_handle()).acknowledged;
  const uint64_t more = moved - std::exchange(moved_, moved);
  if (Pacing* const pacing = session_->pacing()) pacing->AddSent(more);
}

asio::awaitable<Status> ServerStream::SendBare(wire::FrameType type) {
  OutFrame frame;
  frame.header.type = type;
  co_return co_await Send(frame);
}

asio::awaitable<void> ServerStream::SendError(const Status& status) {
  watchdog_->EndAfter(kErrorGrace);
  const auto payload = wire::Encode(wire::FromStatus(status));
  OutFrame frame;
  frame.header.type = wire::FrameType::kError;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.header.payload_xxh3 = Xxh3(payload);
  frame.payload = payload;
  const Status sent = co_await Send(frame);
  if (sent.ok()) co_await AwaitClose();
}

asio::awaitable<StatusOr<wire::FrameHeader>> ServerStream::ReadHeader(wire::FrameType want) {
  wire::HeaderBytes bytes;
  watchdog_->Feed();
  Status status = co_await ReadAll(bytes.data(), bytes.size(), "waiting for a frame");
  if (!status.ok()) co_return status;
  auto header = wire::DecodeHeader(bytes);
  if (!header.ok()) co_return header.status();
  if (header->type != want) {
    co_return Errorf(StatusCode::kInvalidArgument, "expected a {} frame, got {}",
                     wire::ToString(want), wire::ToString(header->type));
  }
  co_return header;
}

asio::awaitable<Status> ServerStream::ReadPayload(const wire::FrameHeader& header,
                                                  std::vector<std::byte>& payload) {
  payload.resize(header.payload_bytes);
  Status status = co_await ReadAll(payload.data(), payload.size(), "reading a payload");
  if (!status.ok()) co_return status;
  co_return wire::CheckPayload(header, Xxh3(payload));
}

asio::awaitable<Status> ServerStream::ReadAll(void* to, size_t bytes, std::string_view what) {
  if (connection_->cut) co_return WhyCut();
  connection_->reading = true;
  auto [ec, n] = co_await bytes_.ReadAll(asio::buffer(to, bytes));
  connection_->reading = false;
  if (ec) co_return Failure(what, ec);
  co_return absl::OkStatus();
}

void ServerStream::TellSession(const Status& status) {
  if (session_ == nullptr) return;
  try {
    session_->StreamClosed(stream_, status);
  } catch (...) {
    LogError("bulk stream from {}: {}", peer_,
             MessageOf(FromException("ending it", std::current_exception())));
  }
}

Status ServerStream::WhyCut() {
  const Status unsaid = absl::AbortedError("the sender ended this pull; pull again");
  if (session_ == nullptr) return unsaid;
  try {
    const auto next = session_->Next(stream_, [] {});
    return next.ok() ? unsaid : next.status();
  } catch (...) {
    return unsaid;
  }
}

Status ServerStream::Failure(std::string_view doing, const ErrorCode& ec) const {
  if (watchdog_->fired()) {
    return Errorf(StatusCode::kDeadlineExceeded, "{} to {}: no progress for {} ms", doing, peer_,
                  watchdog_->limit().count());
  }
  if (!bytes_.fault().empty()) {
    return Errorf(StatusCode::kUnauthenticated, "{} ({}): {}", doing, peer_, bytes_.fault());
  }
  return FromAsio(fmt::format("{} ({})", doing, peer_), ec);
}

}  // namespace deltawire::net
