#include "proto/client/control_client.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "common/base/sync.h"
#include "common/config/endpoint.h"
#include "common/security/credentials.h"
#include "proto/client/connect.h"
#include "proto/client/json.h"
#include "proto/deltawire/v1/receiver.pb.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using std::chrono::milliseconds;
using Stream = grpc::ClientAsyncReaderWriter<Message, Message>;

// Tags of a call's completion queue.
constexpr intptr_t kWritten = 1, kRead = 2, kFinished = 3;
void* Tag(intptr_t tag) { return reinterpret_cast<void*>(tag); }

std::unique_ptr<Message> New(const google::protobuf::Descriptor* type) {
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  return std::unique_ptr<Message>(factory->GetPrototype(type)->New());
}

StatusOr<const MethodDescriptor*> Find(const ServiceDescriptor& service, const std::string& name) {
  if (const MethodDescriptor* found = service.FindMethodByName(name)) return found;
  std::string all;
  for (int i = 0; i < service.method_count(); ++i) {
    all += (all.empty() ? "" : ", ") + service.method(i)->name();
  }
  return Errorf(StatusCode::kInvalidArgument, "{} has no method \"{}\"; it has {}", service.name(),
                name, all);
}

StatusOr<std::unique_ptr<Message>> ParseRequest(const MethodDescriptor& method,
                                                const std::string& json) {
  auto request = New(method.input_type());
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request.get());
  if (parsed.ok()) return request;
  const auto why = parsed.message();
  return Errorf(StatusCode::kInvalidArgument, "{}: this is no {} in JSON: {}", method.name(),
                method.input_type()->name(), std::string_view(why.data(), why.size()));
}

}  // namespace

/// A channel, with a thread that waits in gRPC and thereby reads the connection. Without it, pings
/// would stay unanswered while a call's reader handles an answer, and the daemon cuts a connection
/// after some seconds of that.
struct ControlClient::Line {
  explicit Line(std::shared_ptr<grpc::Channel> made)
      : channel(std::move(made)), reader([this] {
          while (!over) {
            channel->WaitForStateChange(channel->GetState(false),
                                        std::chrono::system_clock::now() + milliseconds(200));
          }
        }) {}
  ~Line() {
    over = true;
    reader.join();
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  const std::shared_ptr<grpc::Channel> channel;
  std::atomic<bool> over{false};
  Thread reader;  // last, because it uses the others
};

/// The client's present line. It is made when a call needs it, and replaced when a new one would
/// work better. Calls in progress keep theirs.
class ControlClient::Connection {
 public:
  Connection(Daemon daemon, std::string at, std::shared_ptr<security::Credentials> credentials,
             milliseconds timeout)
      : service(*(
            daemon == Daemon::kSender
                ? v1::SenderStatusRequest::descriptor()->file()->FindServiceByName("SenderService")
                : v1::ReceiverStatusRequest::descriptor()->file()->FindServiceByName(
                      "ReceiverService"))),
        who(daemon == Daemon::kSender ? "sender" : "receiver"),
        address(std::move(at)),
        credentials_(std::move(credentials)),
        timeout_(timeout) {}

  StatusOr<std::shared_ptr<Line>> Connected(milliseconds timeout) {
    const auto material = credentials_->Now();
    {
      std::lock_guard lock(mu_);
      // A broken channel is not reused: gRPC would reconnect it after a pause of up to two minutes,
      // and with the old token.
      if (line_ != nullptr && material == material_ &&
          line_->channel->GetState(false) == GRPC_CHANNEL_READY) {
        return line_;
      }
    }
    const milliseconds most = timeout.count() == 0 ? timeout_ : std::min(timeout, timeout_);
    DW_ASSIGN_OR_RETURN(auto channel, ConnectControl(peer(), most));
    auto line = std::make_shared<Line>(std::move(channel));
    std::shared_ptr<Line> before;  // destroyed outside the lock
    {
      std::lock_guard lock(mu_);
      material_ = material;
      before = std::exchange(line_, line);
    }
    return line;
  }

  /// Records that a call over `line` has ended with `status`.
  void Ended(const std::shared_ptr<Line>& line, const grpc::Status& status) {
    // A channel keeps the token that it was made with. And a channel that a flipped bit has
    // corrupted may stay silent for ever while it counts as connected.
    const bool useless = status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
                         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    std::lock_guard lock(mu_);
    if (useless && line == line_) line_ = nullptr;  // the call still holds it
  }

  DialedPeer peer() const { return {who, address, *credentials_, {}}; }

  const ServiceDescriptor& service;
  const std::string who, address;

 private:
  const std::shared_ptr<security::Credentials> credentials_;
  const milliseconds timeout_;
  std::mutex mu_;
  std::shared_ptr<Line> line_;
  std::shared_ptr<const security::CredentialMaterial> material_;  // the credentials of line_
};

struct ControlCall::State {
  // Reading -> HasAnswer -> Reading, or after the last answer -> Ending -> Ended.
  enum class Phase : uint8_t { kReading, kHasAnswer, kEnding, kEnded };

  State(std::shared_ptr<ControlClient::Connection> to, std::shared_ptr<ControlClient::Line> over)
      : connection(std::move(to)), line(std::move(over)), stub(line->channel) {}

  void Start(const MethodDescriptor& method, std::unique_ptr<Message> asked, milliseconds timeout) {
    request = std::move(asked);
    answer = New(method.output_type());
    if (timeout.count() > 0) context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_initial_metadata_corked(true);  // send it with the request; StartCall has no tag
    stream = stub.PrepareCall(
        &context, fmt::format("/{}/{}", method.service()->full_name(), method.name()), &queue);
    stream->StartCall(nullptr);
    stream->WriteLast(*request, grpc::WriteOptions(), Tag(kWritten));
    ++open;
    Read();
  }
  void Read() {
    phase = Phase::kReading;
    stream->Read(answer.get(), Tag(kRead));
    ++open;
  }
  void End() {
    phase = Phase::kEnding;
    stream->Finish(&status, Tag(kFinished));
    ++open;
  }
  /// Waits for one tag. Returns false if none arrived before `until`.
  bool Await(std::chrono::system_clock::time_point until) {
    void* tag = nullptr;
    bool good = false;
    if (queue.AsyncNext(&tag, &good, until) != grpc::CompletionQueue::GOT_EVENT) return false;
    --open;
    if (tag == Tag(kRead) && good) phase = Phase::kHasAnswer;
    if (tag == Tag(kRead) && !good) End();
    if (tag == Tag(kFinished)) {
      phase = Phase::kEnded;
      connection->Ended(line, status);
    }
    return true;
  }

  const std::shared_ptr<ControlClient::Connection> connection;
  const std::shared_ptr<ControlClient::Line> line;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::TemplatedGenericStub<Message, Message> stub;
  std::unique_ptr<Message> request, answer;
  std::unique_ptr<Stream> stream;
  Phase phase = Phase::kReading;
  int open = 0;         // pending tags
  grpc::Status status;  // valid once ended
};

ControlCall::ControlCall(std::unique_ptr<State> state) : state_(std::move(state)) {}

ControlCall::~ControlCall() {
  constexpr auto kForEver = std::chrono::system_clock::time_point::max();
  Cancel();
  // gRPC writes to the call's memory until its last tag.
  while (state_->open > 0) state_->Await(kForEver);
  if (state_->phase == State::Phase::kHasAnswer) {
    state_->End();
    while (state_->open > 0) state_->Await(kForEver);
  }
  state_->queue.Shutdown();
  void* tag = nullptr;
  bool good = false;
  while (state_->queue.Next(&tag, &good)) {
  }
}

StatusOr<ControlCall::Turn> ControlCall::Next(milliseconds patience, std::string* answer) {
  using Phase = State::Phase;
  State& s = *state_;
  const auto until = patience.count() < 0 ? std::chrono::system_clock::time_point::max()
                                          : std::chrono::system_clock::now() + patience;
  if (s.phase == Phase::kHasAnswer) s.Read();  // the caller has the last answer
  while (s.phase == Phase::kReading || s.phase == Phase::kEnding) {
    if (!s.Await(until)) return Turn::kNotYet;
  }
  if (s.phase == Phase::kHasAnswer) {
    *answer = ToLine(ToJson(*s.answer));
    return Turn::kAnswer;
  }
  DW_RETURN_IF_ERROR(CheckAnswer(s.status, s.connection->peer()));
  return Turn::kEnd;
}

void ControlCall::Cancel() { state_->context.TryCancel(); }

ControlClient::ControlClient() = default;
ControlClient::~ControlClient() = default;

StatusOr<std::unique_ptr<ControlClient>> ControlClient::Create(const Options& options) {
  DW_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(options.address));
  auto credentials = security::Credentials::None();
  if (!options.credentials.empty()) {
    DW_ASSIGN_OR_RETURN(credentials, security::Credentials::Load(options.credentials));
  }
  std::unique_ptr<ControlClient> client(new ControlClient());
  client->connection_ = std::make_shared<Connection>(options.daemon, ToString(endpoint),
                                                     std::move(credentials), options.timeout);
  return client;
}

StatusOr<std::unique_ptr<ControlCall>> ControlClient::Start(const std::string& method,
                                                            const std::string& request,
                                                            milliseconds timeout) {
  const auto begun = std::chrono::steady_clock::now();
  DW_ASSIGN_OR_RETURN(const MethodDescriptor* found, Find(connection_->service, method));
  DW_ASSIGN_OR_RETURN(auto message, ParseRequest(*found, request));
  DW_ASSIGN_OR_RETURN(auto line, connection_->Connected(timeout));
  if (timeout.count() > 0) {
    const auto took = std::chrono::steady_clock::now() - begun;
    timeout = std::max(milliseconds(1), timeout - std::chrono::ceil<milliseconds>(took));
  }
  auto state = std::make_unique<ControlCall::State>(connection_, std::move(line));
  state->Start(*found, std::move(message), timeout);
  return std::unique_ptr<ControlCall>(new ControlCall(std::move(state)));
}

}  // namespace deltawire
