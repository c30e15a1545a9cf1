// The references over bare TCP: a second process that receives into its own mapping, and ends with
// this one. REQUIRES of Start: no other thread runs yet (it forks). One caller; each end has as
// many threads as streams while bytes move. kUnavailable means that the peer has gone.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "bench/delta/references.h"
#include "tests/support/forked.h"

namespace deltawire::bench {

class Stream;

class TcpPeer {
 public:
  /// The peer's mapping is `file`, a new one of `bytes` in tmpfs, also mapped here: landed(). With
  /// a file of credentials each stream is OpenSSL's over its socket, with the contexts of the
  /// daemons' bulk streams: TLS 1.3 with AES-128-GCM.
  static StatusOr<std::unique_ptr<TcpPeer>> Start(const std::filesystem::path& file, uint64_t bytes,
                                                  size_t streams,
                                                  const std::string& credentials = "");
  ~TcpPeer();

  /// Sends `source`, one contiguous part per stream. Returns the seconds from the start until the
  /// peer reports that all is in its mapping. REQUIRES: source has the mapping's size.
  StatusOr<double> SendAll(Bytes source);

  /// Sends the lists of the reference `pairs`, of u16 words, over one stream; the peer applies
  /// them. Returns the seconds until the peer reports that it is done.
  StatusOr<double> SendPairs(const Lists& pairs);

  /// Returns the CPU time of this process and the peer's so far.
  double CpuSeconds() const;

  MutableBytes landed() { return {landed_.base(), landed_.bytes()}; }

 private:
  TcpPeer();
  /// Sends `parts[i]`, one after the other, over stream i.
  StatusOr<double> Send(uint64_t order, const std::vector<std::vector<Bytes>>& parts);

  Mapping landed_;
  std::unique_ptr<Stream> control_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::optional<testing::Forked> process_;
};

}  // namespace deltawire::bench
