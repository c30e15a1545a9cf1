// The receiving end of the bulk protocol: it dials N streams for one pull and hands frames to a
// sink. Run blocks the thread that drives a replica; the streams run on IoThreads. Cancel from any
// thread makes Run return kCancelled. A host name is looked up once, within the stream timeout. The
// first error of any stream ends all streams; frames handed over before stay valid.
#pragma once

#include <memory>

#include "common/net/host_lookup.h"
#include "common/net/io_threads.h"
#include "common/net/pull_transport.h"

namespace deltawire::net {

class PullClient : public PullTransport {
 public:
  PullClient(IoThreads& io, PullTarget target, ResolveHost resolve = AddressesOf);
  ~PullClient() override;

  /// Dials a host given as an address; Run looks up a name.
  void Connect() override;
  void SetTicket(const wire::Ticket& ticket) override;
  StatusOr<PullEnd> Run(const wire::Have& have, ChunkSink& sink) override;
  void Cancel() override;
  LinkSample link() const override;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltawire::net
