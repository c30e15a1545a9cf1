#include "tests/simulation/offload_calls.h"

#include <optional>

#include "tests/simulation/trainer.h"

namespace deltawire::simulation {
namespace {

using Found = std::optional<OffloadAnswer>;

void Answer(Connection& connection, OffloadAnswer answer) {
  (void)connection.Send(Connection::kServer,
                        {.object = std::make_shared<const OffloadAnswer>(std::move(answer))});
}

/// Looks again whenever the model tells of news, until there is an answer or the caller has gone.
void Watch(const std::shared_ptr<Connection>& connection, sender::Model& model,
           const std::function<Found()>& look) {
  const auto news = std::make_shared<bool>(false);
  const auto listener = model.offloads().OnNews([news, connection] {
    *news = true;
    Scheduler::current()->Wake(connection.get());
  });
  while (!connection->Ended(Connection::kServer)) {
    *news = false;
    if (auto found = look()) return Answer(*connection, *std::move(found));
    while (!*news && !connection->Ended(Connection::kServer)) {
      Scheduler::current()->Block(connection.get(), "news of an offload",
                                  connection->EndsAt(Connection::kServer));
    }
  }
}

// Holds no model, so that another one can take its place meanwhile.
void Use(const std::shared_ptr<Connection>& connection, const std::weak_ptr<sender::Model>& model,
         const OffloadCall& call) {
  model.lock()->offloads().AddClient(call.client);
  Answer(*connection, {});
  while (!connection->Ended(Connection::kServer)) {
    Scheduler::current()->Block(connection.get(), "the end of a client",
                                connection->EndsAt(Connection::kServer));
  }
  if (const auto still = model.lock()) still->offloads().RemoveClient(call.client);
}

void Attend(const std::shared_ptr<Connection>& connection, sender::Model& model,
            const OffloadCall& call) {
  const Status attended = model.offloads().Attend(call.lease, call.rank);
  Answer(*connection, {.status = attended});
  if (!attended.ok()) return;
  Watch(connection, model, [&]() -> Found {
    const auto ready = model.offloads().IsReady(call.lease, call.rank);
    if (ready.ok() && !*ready) return std::nullopt;
    return OffloadAnswer{.status = ready.status()};
  });
  model.offloads().EndAttend(call.lease, call.rank);
}

void WaitPublished(const std::shared_ptr<Connection>& connection, sender::Model& model,
                   const OffloadCall& call) {
  model.offloads().CountWaiters(call.lease, 1);
  Watch(connection, model, [&]() -> Found {
    const auto outcome = model.offloads().Outcome(call.version, call.lease, call.attempt);
    if (!outcome) return std::nullopt;
    if (!outcome->ok()) return OffloadAnswer{.status = outcome->status()};
    return OffloadAnswer{.status = {}, .info = **outcome};
  });
  model.offloads().CountWaiters(call.lease, -1);
}

}  // namespace

void ServeOffloadCall(const std::shared_ptr<Connection>& connection, sender::Agent* agent) {
  const auto asked = connection->Receive(Connection::kServer);
  if (!asked.ok()) return;
  const OffloadCall call = *static_cast<const OffloadCall*>(asked->object.get());
  auto model = agent == nullptr
                   ? StatusOr<std::shared_ptr<sender::Model>>(absl::UnavailableError("starting"))
                   : agent->models().Find(kModel);
  if (!model.ok()) {
    Answer(*connection, {.status = model.status()});
  } else if (call.what == OffloadCall::What::kUse) {
    const std::weak_ptr<sender::Model> weak = *model;
    model->reset();
    Use(connection, weak, call);
  } else if (call.what == OffloadCall::What::kAttend) {
    Attend(connection, **model, call);
  } else {
    WaitPublished(connection, **model, call);
  }
  connection->Close(Connection::kServer);
}

}  // namespace deltawire::simulation
