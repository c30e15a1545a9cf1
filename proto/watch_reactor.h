// A call that waits or streams without holding a thread. Its source returns the next message, and
// calls back when there may be another one. A peer that reads slowly gets the newest message after
// each read, and nothing queues up. The reactor owns itself from Begin until OnDone. gRPC's
// callbacks and threads with news call it; one at a time asks the source.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "common/base/listeners.h"
#include "common/base/sync.h"
#include "proto/convert.h"
#include "proto/stream_turn.h"

namespace deltawire {

template <typename Message>
class WatchSource {
 public:
  virtual ~WatchSource() = default;
  enum class Found : uint8_t {
    kMessage,  ///< `out` is the next message
    kNothing,  ///< there is no message now
    kEnd,      ///< there will be no further message: the call ends with OK
  };
  /// Must not block.
  virtual StatusOr<Found> Next(Message* out) = 0;
};

/// A source of changes with serials, of which only the newest is sent. Until the call is over, it
/// holds the call's share of the limits and listens.
template <typename Message, typename Change>
class ChangeSource final : public WatchSource<Message> {
 public:
  using Found = typename WatchSource<Message>::Found;
  /// Returns the newest change, or none if its serial is `seen` (0: no change). Must not block.
  using After = std::function<StatusOr<std::optional<Change>>(uint64_t seen)>;
  using Write = std::function<void(const Change& change, Message* out)>;

  ChangeSource(std::shared_ptr<const void> held, Listeners::Listener listener, After after,
               Write write)
      : held_(std::move(held)),
        after_(std::move(after)),
        write_(std::move(write)),
        listener_(std::move(listener)) {}

  StatusOr<Found> Next(Message* out) override {
    DW_ASSIGN_OR_RETURN(const auto change, after_(seen_));
    if (!change) return Found::kNothing;
    seen_ = change->serial;
    out->Clear();
    write_(*change, out);
    return Found::kMessage;
  }

 private:
  const std::shared_ptr<const void> held_;
  const After after_;
  const Write write_;
  const Listeners::Listener listener_;
  uint64_t seen_ = 0;
};

/// A call with a source of messages. `Base` is gRPC's reactor for one answer or for a stream.
template <typename Base, typename Message>
class SourceReactor : public Base {
 public:
  using Source = WatchSource<Message>;
  /// Makes the source of a call, or returns why the call is refused. The source calls `news` when
  /// Next may have a message, from any thread and without a lock. One such call may come after its
  /// destruction.
  using Open = std::function<StatusOr<std::unique_ptr<Source>>(std::function<void()> news)>;

  void OnCancel() override { End(absl::CancelledError("the caller has gone")); }
  void OnDone() override {
    std::unique_ptr<Source> source;
    {
      std::lock_guard lock(mu_);
      source = std::move(source_);
    }
    source.reset();
    const auto last = std::move(self_);  // deletes this, unless a callback is running
  }

 protected:
  using Turn = StreamTurn::Next;
  explicit SourceReactor(grpc::CallbackServerContext& context) : context_(context) {}

  /// `self` points to this object. The source writes its messages to `message`.
  void Start(std::shared_ptr<SourceReactor> self, Message* message, const Open& open) {
    message_ = message;
    self_ = std::move(self);
    auto source = open([weak = std::weak_ptr(self_)] {
      if (const auto still = weak.lock()) still->News();
    });
    if (!source.ok()) return End(source.status());
    {
      std::lock_guard lock(mu_);
      source_ = *std::move(source);
    }
    News();
  }

  void Written(bool ok) {
    Turn next;
    {
      std::lock_guard lock(mu_);
      next = turn_.Written(ok);
    }
    Do(next);
  }

 private:
  /// A message is ready.
  virtual Turn Found(StreamTurn& turn) = 0;
  virtual void Write(Message* message) = 0;

  void News() {
    Turn next = Turn::kNothing;
    {
      std::lock_guard lock(mu_);
      if (source_ != nullptr) next = turn_.News();  // else Start asks after it has set the source
    }
    Do(next);
  }

  void End(Status why) {
    Turn next;
    {
      std::lock_guard lock(mu_);
      next = turn_.End(std::move(why));
    }
    Do(next);
  }

  /// The source lives as long as a thread looks, because that thread calls Finish before OnDone.
  Turn Look() {
    const auto found = source_->Next(message_);
    std::lock_guard lock(mu_);
    if (!found.ok()) return turn_.FoundEnd(found.status());
    switch (*found) {
      case Source::Found::kMessage:
        return Found(turn_);
      case Source::Found::kNothing:
        return turn_.FoundNothing();
      case Source::Found::kEnd:
        break;
    }
    return turn_.FoundEnd(absl::OkStatus());
  }

  void Do(Turn next) {
    while (next == Turn::kLook) next = Look();
    if (next == Turn::kWrite) return Write(message_);
    if (next == Turn::kCancel) return context_.TryCancel();
    if (next == Turn::kNothing) return;
    Status why;
    {
      std::lock_guard lock(mu_);
      why = turn_.why();
    }
    this->Finish(ToGrpc(why));
  }

  grpc::CallbackServerContext& context_;
  std::shared_ptr<SourceReactor> self_;  // until OnDone
  Message* message_ = nullptr;           // being filled or written

  Mutex mu_;
  std::unique_ptr<Source> source_;
  StreamTurn turn_;
};

/// A stream of the source's messages.
template <typename Message>
class WatchReactor final : public SourceReactor<grpc::ServerWriteReactor<Message>, Message> {
 public:
  using Base = SourceReactor<grpc::ServerWriteReactor<Message>, Message>;
  /// `context` and the objects that the source refers to outlive the call.
  static WatchReactor* Begin(grpc::CallbackServerContext& context,
                             const typename Base::Open& open) {
    std::shared_ptr<WatchReactor> reactor(new WatchReactor(context));
    reactor->Start(reactor, &reactor->message_, open);
    return reactor.get();
  }

  void OnWriteDone(bool ok) override { this->Written(ok); }

 private:
  explicit WatchReactor(grpc::CallbackServerContext& context) : Base(context) {}
  StreamTurn::Next Found(StreamTurn& turn) override { return turn.Found(); }
  void Write(Message* message) override { this->StartWrite(message); }
  Message message_;
};

/// A call that ends with the source's first message, which is its answer.
template <typename Message>
class AnswerReactor final : public SourceReactor<grpc::ServerUnaryReactor, Message> {
 public:
  using Base = SourceReactor<grpc::ServerUnaryReactor, Message>;
  /// `context`, `answer` and the objects that the source refers to outlive the call.
  static AnswerReactor* Begin(grpc::CallbackServerContext& context, Message* answer,
                              const typename Base::Open& open) {
    std::shared_ptr<AnswerReactor> reactor(new AnswerReactor(context));
    reactor->Start(reactor, answer, open);
    return reactor.get();
  }

 private:
  explicit AnswerReactor(grpc::CallbackServerContext& context) : Base(context) {}
  StreamTurn::Next Found(StreamTurn& turn) override { return turn.FoundEnd(absl::OkStatus()); }
  void Write(Message*) override {}  // Finish writes it
};

}  // namespace deltawire
