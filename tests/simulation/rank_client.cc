#include "tests/simulation/rank_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/simulation/trainer.h"

namespace deltawire::simulation {
namespace {

using Gone = std::function<bool()>;

Scheduler& Running() { return *Scheduler::current(); }

}  // namespace

RankClient::RankClient(Network& network, SenderNode& sender, Settings settings)
    : network_(network), sender_(sender), settings_(std::move(settings)) {}

RankClient::~RankClient() = default;  // its process has died, and its mappings with that

template <typename R>
StatusOr<R> RankClient::Ask(
    std::function<StatusOr<R>(sender::Model&, const std::function<bool()>&)> ask) {
  const Time deadline = Running().now() + settings_.timeout;
  DW_RETURN_IF_ERROR(AwaitSender(deadline));
  return sender_.Ask<R>(
      settings_.name, deadline - Running().now(),
      [ask = std::move(ask)](sender::Agent& agent, const Gone& gone) -> StatusOr<R> {
        DW_ASSIGN_OR_RETURN(const auto model, agent.models().Find(kModel));
        return ask(*model, gone);
      });
}

// gRPC dials again and again until the sender listens (wait_for_ready).
Status RankClient::AwaitSender(Time deadline) {
  while (sender_.agent() == nullptr) {
    if (Running().now() >= deadline) return absl::DeadlineExceededError("no sender listens");
    Running().Sleep(std::chrono::milliseconds(50));
  }
  return absl::OkStatus();
}

StatusOr<RankClient::Offload> RankClient::Begin(uint64_t version, uint64_t attempt,
                                                const std::string& fingerprint,
                                                const std::function<void(uint64_t)>& granted) {
  sender::OffloadRequest request;
  request.version = version;
  request.rank = settings_.rank;
  request.world = settings_.world;
  request.attempt = attempt;
  request.publisher = "a trainer";  // the same for all, since nothing may rely on it
  request.client = settings_.client;
  request.job = settings_.job;
  if (use_ == nullptr || use_->done) {
    // The use stream, too, waits for a sender that starts, and reaches it before the call does.
    DW_RETURN_IF_ERROR(AwaitSender(Running().now() + settings_.timeout));
    ShowUse();
  }
  DW_ASSIGN_OR_RETURN(
      const sender::OffloadGrant grant,
      Ask<sender::OffloadGrant>([request, fingerprint](sender::Model& model, const Gone& gone)
                                    -> StatusOr<sender::OffloadGrant> {
        if (model.layout().fingerprint().Hex() != fingerprint) {
          return absl::FailedPreconditionError("registered with another layout since");
        }
        return model.offloads().Begin(request, gone);
      }));
  granted(grant.lease);
  Offload offload{.version = version,
                  .lease = grant.lease,
                  .attempt = grant.attempt,
                  .published = grant.published};
  const Status attended = MapAndAttend(grant, offload);
  if (!attended.ok()) {
    Abandon(offload, "it could not attend");  // else the other ranks would wait for this one
    return attended;
  }
  last_version_ = version;
  last_lease_ = offload.lease;
  last_attempt_ = offload.attempt;
  return offload;
}

Status RankClient::MapAndAttend(const sender::OffloadGrant& grant, Offload& offload) {
  DW_ASSIGN_OR_RETURN(std::byte* const base, Map(grant.half_path));
  offload.data = base + grant.data_offset;
  return Attend(offload);
}

void RankClient::ShowUse() {
  const auto fresh = Open({.what = OffloadCall::What::kUse, .client = settings_.client});
  const Time deadline = Running().now() + std::chrono::seconds(2);
  while (!fresh->noted && !fresh->done && Running().now() < deadline) {
    Running().Block(fresh.get(), "its use to be noted", deadline);
  }
  // Only now, so that the sender knows at all times that this one lives.
  if (use_ != nullptr && use_->connection != nullptr) use_->connection->Close(Connection::kClient);
  use_ = fresh;
}

StatusOr<std::byte*> RankClient::Map(const std::filesystem::path& path) {
  for (const Mapping& m : mappings_) {
    struct stat now;
    if (m.path == path && ::stat(path.c_str(), &now) == 0 && now.st_ino == m.inode) return m.base;
  }
  if (mappings_.size() >= 2) {
    for (const Mapping& m : mappings_) ::munmap(m.base, m.bytes);
    mappings_.clear();
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open " + path.native());
  struct stat file;
  const bool known = ::fstat(fd, &file) == 0;
  const auto bytes = static_cast<size_t>(file.st_size);
  void* base =
      known ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (base == MAP_FAILED) return ErrnoError("map " + path.native());
  mappings_.push_back({path.native(), file.st_ino, static_cast<std::byte*>(base), bytes});
  return mappings_.back().base;
}

std::shared_ptr<RankClient::Attendance> RankClient::Open(const OffloadCall& call) {
  const auto attendance = std::make_shared<Attendance>();
  // The rank's process and not the client: a stopped rank's attendance outlasts what is called.
  Running().Spawn(
      "attend", Running().fiber()->process,
      [&network = network_, from = settings_.name, to = sender_.name, call, attendance,
       timeout = settings_.timeout] {
        const auto follow = [&]() -> Status {
          DW_ASSIGN_OR_RETURN(const auto connection,
                              network.Connect(from, to, kOffloadPort, timeout));
          attendance->connection = connection;
          DW_RETURN_IF_ERROR(connection->Send(
              Connection::kClient, {.object = std::make_shared<const OffloadCall>(call)}));
          while (true) {
            DW_ASSIGN_OR_RETURN(const Message message, connection->Receive(Connection::kClient));
            const auto& answer = *static_cast<const OffloadAnswer*>(message.object.get());
            if (!answer.status.ok() || attendance->noted) return answer.status;
            attendance->noted = true;
            Running().Wake(attendance.get());
          }
        };
        attendance->status = follow();
        attendance->done = true;
        if (attendance->connection != nullptr) attendance->connection->Close(Connection::kClient);
        Running().Wake(attendance.get());
      });
  return attendance;
}

Status RankClient::Attend(Offload& offload) {
  const auto attendance = offload.attendance =
      Open({.what = OffloadCall::What::kAttend, .lease = offload.lease, .rank = settings_.rank});
  const Time deadline = Running().now() + settings_.timeout;
  while (!attendance->noted && !attendance->done) {
    if (Running().now() >= deadline) return absl::DeadlineExceededError("AttendOffload");
    Running().Block(attendance.get(), "its attendance to be noted", deadline);
  }
  return attendance->status;
}

void RankClient::MarkWritten(const Offload& offload, const sender::WrittenNotice& notice) {
  (void)Ask<bool>(
      [lease = offload.lease, notice](sender::Model& model, const Gone&) -> StatusOr<bool> {
        DW_RETURN_IF_ERROR(model.offloads().MarkWritten(lease, notice));
        return true;
      });
}

Status RankClient::Ready(const Offload& offload, const std::vector<uint32_t>& written,
                         const std::vector<uint32_t>& unchanged) {
  DW_RETURN_IF_ERROR(CheckCarried(offload, unchanged));
  sender::ReadyNotice ready;
  ready.version = offload.version;
  ready.rank = settings_.rank;
  ready.world = settings_.world;
  ready.lease = offload.lease;
  ready.written = written;
  ready.unchanged = unchanged;
  DW_RETURN_IF_ERROR(Ask<bool>([ready](sender::Model& model, const Gone&) {
                       return model.offloads().MarkReady(ready);
                     }).status());
  ready_version_ = offload.version;
  ready_attempt_ = offload.attempt;
  return absl::OkStatus();
}

Status RankClient::CheckCarried(const Offload& offload, const std::vector<uint32_t>& unchanged) {
  const Identity& from = offload.published;
  if (unchanged.empty() || ready_version_ == 0) return absl::OkStatus();
  if (from.id.version == ready_version_ && from.attempt == ready_attempt_) return absl::OkStatus();
  ready_version_ = 0;
  return absl::FailedPreconditionError("its last version was lost");
}

void RankClient::Abandon(const Offload& offload, const std::string& reason) {
  (void)Ask<bool>([lease = offload.lease, rank = settings_.rank, reason](
                      sender::Model& model, const Gone&) -> StatusOr<bool> {
    DW_RETURN_IF_ERROR(model.offloads().Abandon(lease, rank, reason));
    return true;
  });
  if (offload.attendance != nullptr && offload.attendance->connection != nullptr) {
    offload.attendance->connection->Close(Connection::kClient);
  }
}

StatusOr<VersionInfo> RankClient::WaitPublished(uint64_t version) {
  OffloadCall call{.what = OffloadCall::What::kWaitPublished, .version = version};
  if (version == last_version_) {
    call.lease = last_lease_;
    call.attempt = last_attempt_;
  }
  const Time deadline = Running().now() + settings_.timeout;
  auto info = AskPublished(call, deadline);
  // A sender that was restarted may have broken the connection, so it is asked once more.
  if (absl::IsUnavailable(info.status())) info = AskPublished(call, deadline);
  if (absl::IsAborted(info.status()) && version == ready_version_) ready_version_ = 0;
  return info;
}

StatusOr<VersionInfo> RankClient::AskPublished(const OffloadCall& call, Time deadline) {
  DW_RETURN_IF_ERROR(AwaitSender(deadline));
  DW_ASSIGN_OR_RETURN(const auto connection,
                      network_.Connect(settings_.name, sender_.name, kOffloadPort,
                                       std::max(Time(0), deadline - Running().now())));
  DW_RETURN_IF_ERROR(
      connection->Send(Connection::kClient, {.object = std::make_shared<const OffloadCall>(call)}));
  const auto message = connection->Receive(Connection::kClient, deadline);
  connection->Close(Connection::kClient);
  DW_RETURN_IF_ERROR(message.status());
  const auto& answer = *static_cast<const OffloadAnswer*>(message->object.get());
  DW_RETURN_IF_ERROR(answer.status);
  return answer.info;
}

}  // namespace deltawire::simulation
