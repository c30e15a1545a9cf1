#include "tests/simulation/bulk.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/base/sync.h"
#include "tests/simulation/planted.h"

namespace deltawire::simulation {
namespace {

using Side = Connection::Side;

/// Frames over a connection: the header is one message, the payload follows in pieces.
class FrameStream {
 public:
  FrameStream(std::shared_ptr<Connection> connection, Side side, Time timeout)
      : connection_(std::move(connection)), side_(side), timeout_(timeout) {}

  Status SendHeader(const wire::FrameHeader& header) {
    const wire::HeaderBytes bytes = wire::EncodeHeader(header);
    return connection_->Send(side_, {.bytes = {bytes.begin(), bytes.end()}}, Deadline());
  }

  /// Each piece is read from memory when it is sent, as a socket does.
  Status SendPayload(Bytes payload) {
    for (size_t done = 0; done < payload.size(); done += kPieceBytes) {
      const Bytes piece = payload.subspan(done, std::min(kPieceBytes, payload.size() - done));
      DW_RETURN_IF_ERROR(
          connection_->Send(side_, {.bytes = {piece.begin(), piece.end()}}, Deadline()));
    }
    return absl::OkStatus();
  }

  Status SendControl(wire::FrameType type, Bytes payload) {
    wire::FrameHeader header;
    header.type = type;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_xxh3 = Xxh3(payload);
    DW_RETURN_IF_ERROR(SendHeader(header));
    return SendPayload(payload);
  }

  StatusOr<wire::FrameHeader> ReceiveHeader() {
    DW_ASSIGN_OR_RETURN(const Message message, connection_->Receive(side_, Deadline()));
    return wire::DecodeHeader(message.bytes);
  }

  /// Calls `arrived(bytes)` after each piece.
  template <typename Arrived>
  Status ReceivePayload(MutableBytes to, Arrived arrived) {
    for (size_t done = 0; done < to.size();) {
      DW_ASSIGN_OR_RETURN(const Message message, connection_->Receive(side_, Deadline()));
      if (message.bytes.size() > to.size() - done) return absl::DataLossError("out of step");
      std::copy(message.bytes.begin(), message.bytes.end(), to.begin() + static_cast<long>(done));
      done += message.bytes.size();
      arrived(done);
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<std::byte>> ReceiveControl(const wire::FrameHeader& header) {
    std::vector<std::byte> payload(header.payload_bytes);
    DW_RETURN_IF_ERROR(ReceivePayload(payload, [](size_t) {}));
    DW_RETURN_IF_ERROR(wire::CheckPayload(header, Xxh3(payload)));
    return payload;
  }

  Connection& connection() { return *connection_; }

 private:
  Time Deadline() const { return Scheduler::current()->now() + timeout_; }

  const std::shared_ptr<Connection> connection_;
  const Side side_;
  const Time timeout_;
};

class Transport : public net::PullTransport {
 public:
  Transport(Network& network, std::string self, net::PullTarget target)
      : network_(network), self_(std::move(self)), target_(std::move(target)) {}

  StatusOr<net::PullEnd> Run(const wire::Have& have, net::ChunkSink& sink) override {
    std::vector<Thread> threads;
    for (uint16_t i = 0; i < target_.streams; ++i) {
      threads.emplace_back([this, i, &have, &sink] {
        const Status status = RunStream(i, have, sink);
        if (!status.ok()) Fail(Annotate(status, fmt::format("bulk stream {}", i)));
      });
    }
    for (Thread& t : threads) t.join();
    if (!status_.ok()) return status_;
    return *end_;
  }

  void Cancel() override { Fail(absl::CancelledError("the pull was cancelled")); }

 private:
  void Fail(const Status& why) {
    if (!status_.ok()) return;
    status_ = why;
    for (const auto& connection : connections_) connection->Break(Connection::kClient);
  }

  Status RunStream(uint16_t index, const wire::Have& have, net::ChunkSink& sink) {
    const Time timeout = target_.stream_timeout;
    DW_ASSIGN_OR_RETURN(const auto connection,
                        network_.Connect(self_, target_.host, "bulk", timeout));
    connections_.push_back(connection);
    if (!status_.ok()) {
      connection->Break(Connection::kClient);
      return status_;
    }
    FrameStream stream(connection, Connection::kClient, timeout);
    wire::Hello hello;
    hello.ticket = target_.ticket;
    hello.fingerprint = target_.fingerprint;
    hello.stream = index;
    hello.streams = target_.streams;
    DW_RETURN_IF_ERROR(stream.SendControl(wire::FrameType::kHello, wire::Encode(hello)));
    DW_ASSIGN_OR_RETURN(const wire::FrameHeader header, stream.ReceiveHeader());
    if (header.type == wire::FrameType::kError) return ReadError(stream, header);
    if (header.type != wire::FrameType::kWelcome) return absl::DataLossError("no Welcome");
    if (index == 0) {
      DW_RETURN_IF_ERROR(stream.SendControl(wire::FrameType::kHave, wire::Encode(have)));
    }
    return Receive(stream, sink);
  }

  Status Receive(FrameStream& stream, net::ChunkSink& sink) {
    while (true) {
      DW_ASSIGN_OR_RETURN(const wire::FrameHeader header, stream.ReceiveHeader());
      switch (header.type) {
        case wire::FrameType::kPing:
          break;
        case wire::FrameType::kChunkFull:
        case wire::FrameType::kChunkDelta:
          DW_RETURN_IF_ERROR(ReceiveChunk(stream, header, sink));
          break;
        case wire::FrameType::kEnd: {
          const Status ended = ReceiveEnd(stream, header);
          stream.connection().Close(Connection::kClient);
          return ended;
        }
        case wire::FrameType::kError:
          return ReadError(stream, header);
        default:
          return absl::DataLossError("a frame is out of place");
      }
    }
  }

  static Status ReceiveChunk(FrameStream& stream, const wire::FrameHeader& header,
                             net::ChunkSink& sink) {
    DW_ASSIGN_OR_RETURN(const MutableBytes to, sink.Begin(header));
    ArrivingChunk arriving{.expected = header.digest_after, .bytes = header.payload_bytes};
    const bool full = header.type == wire::FrameType::kChunkFull;
    ArrivingChunk* lie = full && planted() == Plant::kSkipDigest ? &arriving : nullptr;
    Status status = stream.ReceivePayload(to, [&](size_t bytes) {
      SetArriving(lie);
      sink.Arrived(header, bytes);
      SetArriving(nullptr);
    });
    if (status.ok() && !full) status = wire::CheckPayload(header, Xxh3(to));
    if (status.ok()) {
      SetArriving(lie);
      const Status finished = sink.Finish(header);
      SetArriving(nullptr);
      return finished;
    }
    sink.Abandon(header);
    return status;
  }

  Status ReceiveEnd(FrameStream& stream, const wire::FrameHeader& header) {
    DW_ASSIGN_OR_RETURN(const auto payload, stream.ReceiveControl(header));
    DW_ASSIGN_OR_RETURN(const wire::End end, wire::DecodeEnd(payload));
    const net::PullEnd mine{.identity = {.lineage = end.lineage,
                                         .id = {header.epoch, header.version},
                                         .root = end.root,
                                         .attempt = end.attempt},
                            .side_files_hash = end.side_files_hash};
    if (end_.has_value() && !(end_->identity == mine.identity)) {
      return absl::DataLossError("streams end at different states");
    }
    end_ = mine;
    return absl::OkStatus();
  }

  static Status ReadError(FrameStream& stream, const wire::FrameHeader& header) {
    DW_ASSIGN_OR_RETURN(const auto payload, stream.ReceiveControl(header));
    DW_ASSIGN_OR_RETURN(const wire::WireError error, wire::DecodeWireError(payload));
    return Annotate(wire::ToStatus(error), "the sender refused");
  }

  Network& network_;
  const std::string self_;
  const net::PullTarget target_;
  std::vector<std::shared_ptr<Connection>> connections_;
  Status status_;
  std::optional<net::PullEnd> end_;
};

/// The state of a served stream that a cut or a wake from another fiber changes.
struct Served {
  bool cut = false;
  bool woken = false;
};

class ServerStream {
 public:
  ServerStream(const std::shared_ptr<Connection>& connection, net::PullSource& source,
               const net::PullServer::Options& options)
      : stream_(connection, Connection::kServer, options.stream_timeout),
        connection_(connection),
        source_(source),
        options_(options) {}

  void Run() {
    const Status status = Exchange();
    if (session_ != nullptr) session_->StreamClosed(index_, status);
    if (!status.ok()) {
      (void)stream_.SendControl(wire::FrameType::kError, wire::Encode(wire::FromStatus(status)));
    }
    connection_->Close(Connection::kServer);
  }

 private:
  StatusOr<std::vector<std::byte>> Expect(wire::FrameType type) {
    DW_ASSIGN_OR_RETURN(const wire::FrameHeader header, stream_.ReceiveHeader());
    if (header.type != type) return absl::DataLossError("a frame is out of place");
    return stream_.ReceiveControl(header);
  }

  Status Exchange() {
    DW_ASSIGN_OR_RETURN(const auto hello_bytes, Expect(wire::FrameType::kHello));
    DW_ASSIGN_OR_RETURN(const wire::Hello hello, wire::DecodeHello(hello_bytes));
    DW_ASSIGN_OR_RETURN(session_, source_.Join(hello, {.address = "simulated"}));
    index_ = hello.stream;
    session_->StreamOpened(index_, [served = served_] {
      served->cut = true;
      Scheduler::current()->Wake(served.get());
    });
    DW_RETURN_IF_ERROR(stream_.SendControl(wire::FrameType::kWelcome, {}));
    if (index_ == 0) {
      DW_ASSIGN_OR_RETURN(const auto payload, Expect(wire::FrameType::kHave));
      DW_ASSIGN_OR_RETURN(const wire::Have have, wire::DecodeHave(payload, session_->chunks()));
      DW_RETURN_IF_ERROR(session_->Start(have));
    }
    return SendAll();
  }

  Status SendAll() {
    Scheduler& scheduler = *Scheduler::current();
    while (true) {
      served_->woken = false;
      DW_ASSIGN_OR_RETURN(auto next, session_->Next(index_, [served = served_] {
        served->woken = true;
        Scheduler::current()->Wake(served.get());
      }));
      if (served_->cut) return absl::AbortedError("the pull was cut; pull again");
      if (connection_->Ended(Connection::kServer)) {
        return absl::UnavailableError("the receiver has gone");
      }
      if (next.has_value()) {
        DW_RETURN_IF_ERROR(stream_.SendHeader(next->header));
        DW_RETURN_IF_ERROR(SendPayload(next->payload));
        if (next->header.type == wire::FrameType::kEnd) return absl::OkStatus();
        continue;
      }
      const Time ping = scheduler.now() + options_.ping_interval;
      while (!served_->woken && !served_->cut && scheduler.now() < ping) {
        scheduler.Block(served_.get(), "something to send", ping);
      }
      if (!served_->woken && !served_->cut) {
        DW_RETURN_IF_ERROR(stream_.SendControl(wire::FrameType::kPing, {}));
      }
    }
  }

  Status SendPayload(Bytes payload) {
    for (size_t done = 0; done < payload.size(); done += kPieceBytes) {
      // A cut promises that afterwards nobody reads the half for this stream.
      if (served_->cut) return absl::AbortedError("the pull was cut; pull again");
      DW_RETURN_IF_ERROR(
          stream_.SendPayload(payload.subspan(done, std::min(kPieceBytes, payload.size() - done))));
    }
    return absl::OkStatus();
  }

  FrameStream stream_;
  const std::shared_ptr<Connection> connection_;
  net::PullSource& source_;
  const net::PullServer::Options options_;
  std::shared_ptr<net::PullSession> session_;
  uint16_t index_ = 0;
  const std::shared_ptr<Served> served_ = std::make_shared<Served>();
};

}  // namespace

std::unique_ptr<net::PullTransport> NewTransport(Network& network, std::string self,
                                                 net::PullTarget target) {
  return std::make_unique<Transport>(network, std::move(self), std::move(target));
}

void ServeBulk(const std::shared_ptr<Connection>& connection, net::PullSource& source,
               const net::PullServer::Options& options) {
  ServerStream(connection, source, options).Run();
}

}  // namespace deltawire::simulation
