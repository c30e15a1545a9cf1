#include "tests/simulation/control.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <utility>

#include "common/base/sync.h"
#include "tests/simulation/decided.h"
#include "tests/simulation/planted.h"
#include "tests/support/next_event.h"

namespace deltawire::simulation {
namespace {

using std::chrono::seconds;

// As in receiver/grpc_upstream.cc.
constexpr Time kShortCall = seconds(3), kLongestCall = seconds(30), kDialling = seconds(1);

/// A message from receiver to sender. Only the first of an attachment has `model`.
struct Up {
  std::string model, receiver_id, peer;
  ReceiverReport report;
};

/// A message from sender to receiver. The last of an attachment that was refused has `refusal`.
struct Down {
  SenderEvent event;
  Status refusal;
};

class SimulatedUpstream : public receiver::Upstream {
 public:
  SimulatedUpstream(Network& network, HostNode& sender, const UpstreamOptions& options,
                    Random random)
      : network_(network), sender_(sender), options_(options), random_(random) {}
  ~SimulatedUpstream() override { Detach(); }

  const std::string& address() const override { return sender_.name; }

  StatusOr<receiver::ModelDescription> Describe(const std::string& model) override {
    return LongAsk<receiver::ModelDescription>(
        [model](PullHost& host) -> StatusOr<receiver::ModelDescription> {
          DW_ASSIGN_OR_RETURN(const auto m, host.Source(model));
          const auto side = m->side_files();
          const auto newest = m->published();
          return receiver::ModelDescription{
              .layout = m->layout(),
              .digest_seed = m->key().seed(),
              .side_files = side->files,
              .side_files_hash = side->hash,
              .owned = m->owned(),
              .lineage = newest == nullptr ? Hash128{} : newest->info.identity.lineage};
        });
  }

  StatusOr<Identity> Newest(const std::string& model) override {
    DW_ASSIGN_OR_RETURN(const Identity newest,
                        Ask<Identity>([model](PullHost& host) -> StatusOr<Identity> {
                          DW_ASSIGN_OR_RETURN(const auto m, host.Source(model));
                          const auto state = m->published();
                          return state == nullptr ? Identity{} : state->info.identity;
                        }));
    return Planted(newest);
  }

  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    return LongAsk<std::vector<SideFile>>(
        [model, hash](PullHost& host) -> StatusOr<std::vector<SideFile>> {
          DW_ASSIGN_OR_RETURN(const auto m, host.Source(model));
          const auto side = m->side_files(hash);
          if (side == nullptr) return absl::NotFoundError("no such side files");
          return side->files;
        });
  }

  StatusOr<receiver::PullGrant> OpenPull(const PullRequest& request) override {
    PullRequest own = request;
    own.receiver_id = options_.receiver_id;
    own.at = Planted(request.at);
    const PullCaller caller{.peer = Peer()};
    DW_ASSIGN_OR_RETURN(const PullTicket ticket, Ask<PullTicket>([own, caller](PullHost& host) {
                          return host.OpenPull(own, caller);
                        }));
    return receiver::PullGrant{.ticket = ticket.ticket,
                               .host = sender_.name,
                               .port = 1,
                               .history = ticket.history,
                               .newest = Planted(ticket.newest.identity)};
  }

  Status Attach(const std::string& model, const ReceiverReport& first,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    if (handle_.cancelled) return absl::CancelledError("stopping");
    committed_ = first.committed;
    // Each attachment dials anew, and takes the calls to its connection, too.
    if (std::exchange(dialled_, true)) BreakCall();
    ++connections_;
    connected_ = true;
    attachment_ = std::make_shared<Attachment>();
    attachment_->queue.push_back({model, options_.receiver_id, Peer(), first});
    reader_ = Thread([this, attachment = attachment_, event = std::move(event),
                      ended = std::move(ended)] { ended(Follow(*attachment, event)); });
    return absl::OkStatus();
  }

  void Send(const ReceiverReport& report) override {
    committed_ = report.committed;
    if (attachment_ == nullptr) return;
    // Only the newest report matters; answers to requests must all arrive.
    std::deque<Up>& queue = attachment_->queue;
    const bool replaced =
        !queue.empty() && queue.back().model.empty() && queue.back().report.sync_request == 0;
    if (replaced) queue.pop_back();
    queue.push_back({.report = report});
    Scheduler::current()->Wake(attachment_.get());
  }

  void Detach() override {
    const auto attachment = std::exchange(attachment_, nullptr);
    if (attachment == nullptr) return;
    attachment->closed = true;
    network_.Cancel(attachment->handle);
    Scheduler::current()->Wake(attachment.get());
    reader_.join();
  }

  void Cancel() override { network_.Cancel(handle_); }

 private:
  struct Attachment {
    std::deque<Up> queue;
    bool closed = false;
    CallHandle handle;
  };

  std::string Peer() const { return fmt::format("{}:{}", options_.peer, connections_); }

  /// Ends the call that runs, if there is one, as when its connection breaks.
  void BreakCall() {
    if (handle_.connection != nullptr) handle_.connection->Break(Connection::kClient);
  }

  template <typename R>
  StatusOr<R> LongAsk(std::function<StatusOr<R>(PullHost&)> ask) {
    const Time began = Scheduler::current()->now();
    auto answer = Ask<R>(std::move(ask), patience_);
    if (answer.ok()) {
      const Time took = Scheduler::current()->now() - began;
      patience_ = std::clamp(4 * took, kShortCall, kLongestCall);
    }
    if (absl::IsDeadlineExceeded(answer.status())) {
      patience_ = std::min(2 * patience_, kLongestCall);
    }
    return answer;
  }

  template <typename R>
  StatusOr<R> Ask(std::function<StatusOr<R>(PullHost&)> ask, Time timeout = kShortCall) {
    if (!std::exchange(connected_, true)) ++connections_;
    const uint64_t used = connections_;
    auto answer = sender_.AskHost<R>(options_.node, timeout, std::move(ask), &handle_);
    if (answer.ok()) return answer;
    // All calls of a connection end with it, and the next ones come from another peer.
    const bool broke =
        absl::IsUnavailable(answer.status()) || absl::IsDeadlineExceeded(answer.status());
    if (broke && used == connections_) {
      if (attachment_ != nullptr && attachment_->handle.connection != nullptr) {
        attachment_->handle.connection->Break(Connection::kClient);
      }
      connected_ = false;
    }
    return Annotate(answer.status(), fmt::format("sender {}", sender_.name));
  }

  Status Follow(Attachment& attachment, const std::function<void(const SenderEvent&)>& event) {
    DW_ASSIGN_OR_RETURN(
        const auto connection,
        network_.Connect(options_.node, sender_.name, "attach", kDialling, &attachment.handle));
    if (attachment.closed) connection->Break(Connection::kClient);
    attachment.handle.connection = connection;
    Thread writer([&attachment, connection] {
      while (!attachment.closed) {
        if (attachment.queue.empty()) {
          Scheduler::current()->Block(&attachment, "a report to send");
          continue;
        }
        auto up = std::make_shared<const Up>(std::move(attachment.queue.front()));
        attachment.queue.pop_front();
        if (!connection->Send(Connection::kClient, {.object = std::move(up)}).ok()) return;
      }
    });
    Status status;
    while (true) {
      const auto message = connection->Receive(Connection::kClient);
      status = message.status();
      if (!status.ok()) break;
      const Down& down = *static_cast<const Down*>(message->object.get());
      status = down.refusal;
      if (!status.ok()) break;
      if (random_.Chance(options_.lost_events)) continue;
      SenderEvent e = down.event;
      Identity& newest = e.newest.identity;
      newest = Planted(newest);
      if (const std::string wrong = NoteTold(options_.node, e.group, newest); !wrong.empty()) {
        Scheduler::current()->Fail(wrong);
      }
      if (planted() == Plant::kEarlyCommit && !e.group.prepare.empty()) {
        e.group.commit = e.group.prepare;
      }
      event(e);
    }
    attachment.closed = true;
    connection->Break(Connection::kClient);
    Scheduler::current()->Wake(&attachment);
    writer.join();
    return status;
  }

  /// The identity as a receiver with the planted bug takes it.
  Identity Planted(Identity identity) const {
    if (options_.drop_attempts) identity.attempt = 0;
    if (options_.numbers_only && !committed_.empty() && !identity.empty()) {
      if (identity.id == committed_.id) return committed_;
      identity.lineage = committed_.lineage;
    }
    return identity;
  }

  Network& network_;
  HostNode& sender_;
  const UpstreamOptions options_;
  Random random_;
  CallHandle handle_;
  uint64_t connections_ = 0;  // number of the present one
  bool connected_ = false;    // the next call uses it
  bool dialled_ = false;      // for an attachment
  Time patience_ = kShortCall;
  Identity committed_;  // as last reported
  std::shared_ptr<Attachment> attachment_;
  Thread reader_;
};

}  // namespace

std::unique_ptr<receiver::Upstream> NewUpstream(Network& network, HostNode& sender,
                                                const UpstreamOptions& options, Random random) {
  return std::make_unique<SimulatedUpstream>(network, sender, options, random);
}

void ServeAttachment(const std::shared_ptr<Connection>& connection, PullHost& host) {
  const auto first = connection->Receive(Connection::kServer);
  if (!first.ok()) return;
  const Up up = *static_cast<const Up*>(first->object.get());
  Attachments& attachments = host.attachments();
  const Status served = host.Source(up.model).status();
  const auto token = served.ok() ? attachments.Attach(up.model, up.receiver_id, up.peer)
                                 : StatusOr<uint64_t>(served);
  if (!token.ok()) {
    auto refused = std::make_shared<const Down>(Down{.refusal = token.status()});
    (void)connection->Send(Connection::kServer, {.object = std::move(refused)});
    return connection->Close(Connection::kServer);
  }
  attachments.Report(*token, up.report);
  Thread reader([&attachments, connection, token = *token] {
    while (true) {
      const auto message = connection->Receive(Connection::kServer);
      if (!message.ok()) break;
      attachments.Report(token, static_cast<const Up*>(message->object.get())->report);
    }
    attachments.Detach(token);
  });
  while (true) {
    const StatusOr<SenderEvent> event = testing::NextEvent(attachments, *token);
    if (!event.ok()) break;
    auto down = std::make_shared<const Down>(Down{.event = *event});
    if (!connection->Send(Connection::kServer, {.object = std::move(down)}).ok()) break;
  }
  attachments.Detach(*token);
  connection->Break(Connection::kServer);
  reader.join();
}

}  // namespace deltawire::simulation
