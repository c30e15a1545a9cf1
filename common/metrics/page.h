// An HTML document of headings, facts, tables and charts: no script, nothing to fetch, light or
// dark as the user's system. It escapes all text, since names of models, tensors and receivers come
// from peers. One request makes and owns it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/identity.h"

namespace deltawire::metrics {

/// The value of the Content-Security-Policy header. It allows the page's own style, images that are
/// `data:` URLs, and nothing else.
extern const char* const kPagePolicy;

/// Escapes `text` for HTML text and attribute values. Bytes that are not UTF-8, and control
/// characters, become U+FFFD.
std::string EscapeHtml(std::string_view text);

/// `text` is for people; `value` is the exact value for programs ("": the same as `text`).
struct Cell {
  enum class Look : uint8_t { kWord, kNumber, kSentence };
  std::string text, value = {};
  Look look = Look::kWord;

  static Cell Word(std::string_view text) { return {std::string(text)}; }
  /// A long text, which may wrap.
  static Cell Sentence(std::string_view text) { return {std::string(text), {}, Look::kSentence}; }
  static Cell Count(uint64_t count);
  static Cell Bytes(uint64_t bytes);
  static Cell Rate(double bytes_per_s);
  static Cell Seconds(double seconds);
  static Cell Share(double part, double all);
  /// Shows "-" for an empty identity.
  static Cell Version(const Identity& id);
  static Cell Trace(const Identity& id);
  /// Shows that a value is unknown or does not apply.
  static Cell None() { return {"-", {}, Look::kNumber}; }
};

using Row = std::vector<Cell>;

/// Collects the line at the top of a page: all is well, or the list of problems.
class Verdict {
 public:
  /// Adds a fact that is as it should be, e.g. "policy is at version 7".
  void AddGood(std::string what) { good_.push_back(std::move(what)); }
  /// Adds a state that ends by itself, e.g. an incoming version.
  void AddWait(std::string what) { waits_.push_back(std::move(what)); }
  /// Adds a problem that needs a person.
  void AddFailure(std::string what) { failures_.push_back(std::move(what)); }

  /// Returns the line's class in the style: "good", "wait" or "bad".
  std::string_view look() const;
  /// Returns "All is well: ...", "Waiting: ..." or "Needs attention: ...".
  std::string Text() const;

 private:
  std::vector<std::string> good_, waits_, failures_;
};

class Page {
 public:
  Page(std::string_view title, double uptime_seconds, const Verdict& verdict);

  void Heading(std::string_view text);
  void Note(std::string_view text);
  /// Shows the main values, each with its name, in large letters.
  void Facts(std::string_view id, const std::vector<std::pair<std::string, Cell>>& facts);
  /// REQUIRES: each row has a cell per title, of one look within a column; `id` is unique.
  void Table(std::string_view id, const std::vector<std::string>& titles,
             const std::vector<Row>& rows);
  /// Shows figures of chart.h side by side, if there is room. Omits empty ones.
  void Charts(const std::vector<std::string>& figures);

  std::string Finish();

 private:
  std::string html_;
};

}  // namespace deltawire::metrics
