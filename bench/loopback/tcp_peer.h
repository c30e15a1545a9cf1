// The references over bare TCP: a second process that receives into a mapping of its own.
// Owner: the suite. REQUIRES of Start: no other thread runs yet (it forks). One caller; as many
// threads as streams at each end while bytes move. The process dies with this one.
// Errors: kUnavailable when the peer is gone.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/shm/mapped_file.h"
#include "tests/support/forked.h"

namespace deltawire::bench {

class TlsEnd;

/// Bytes of an entry of the naive list: a u32 index, then a u16 new value.
inline constexpr size_t kPairBytes = 4 + 2;

class TcpPeer {
 public:
  enum class Way : uint8_t { kPlain, kTls };

  /// The peer's mapping is `file`, a new one of `bytes` in tmpfs, also mapped here: landed(). With
  /// kTls each stream is OpenSSL's over its socket, TLS 1.3 with AES-128-GCM.
  static StatusOr<std::unique_ptr<TcpPeer>> Start(const std::filesystem::path& file, uint64_t bytes,
                                                  size_t streams, Way way = Way::kPlain);
  ~TcpPeer();

  /// Sends `source`, one contiguous part per stream. Returns the seconds from the start until the
  /// peer has said that all is in its mapping. REQUIRES: source has the mapping's size.
  StatusOr<double> SendAll(Bytes source);

  /// Sends a list of pairs over one stream; the peer stores each value at its index (of u16 words)
  /// by a plain loop. Returns the seconds until the peer has said that it is done.
  StatusOr<double> SendPairs(Bytes pairs);

  /// CPU time of this process and the peer's so far.
  double CpuSeconds() const;

  MutableBytes landed() { return {landed_.base(), landed_.bytes()}; }

 private:
  TcpPeer();
  StatusOr<double> Send(uint64_t order, const std::vector<Bytes>& parts);

  Mapping landed_;
  UniqueFd control_;
  std::vector<UniqueFd> streams_;
  std::unique_ptr<TlsEnd> tls_;  // null: plaintext
  std::optional<testing::Forked> process_;
};

}  // namespace deltawire::bench
