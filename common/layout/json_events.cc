#include "common/layout/json_events.h"

#include <nlohmann/json.hpp>

#include "common/layout/names.h"

namespace deltawire {
namespace {

constexpr unsigned kMaxDepth = 16;

/// Turns nlohmann's SAX callbacks into JsonEvents. Returning `false` ends the parse.
class Adapter {
 public:
  using Json = nlohmann::json;

  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() { return Keep(events_.Other("null")); }
  bool boolean(bool) { return Keep(events_.Other("true or false")); }
  bool number_integer(Json::number_integer_t) { return Keep(events_.Other("a negative number")); }
  bool number_unsigned(Json::number_unsigned_t v) { return Keep(events_.Unsigned(v)); }
  bool number_float(Json::number_float_t, const std::string& text) {
    return Keep(events_.Other(text.find_first_of(".eE") == std::string::npos
                                  ? "a number beyond 64 bits"
                                  : "a fractional number"));
  }
  bool string(std::string& v) { return Keep(events_.String(v)); }
  bool binary(Json::binary_t&) { return Keep(events_.Other("binary data")); }
  bool start_object(size_t) { return Enter() && Keep(events_.StartObject()); }
  bool start_array(size_t) { return Enter() && Keep(events_.StartArray()); }
  bool end_object() { return Leave() && Keep(events_.EndObject()); }
  bool end_array() { return Leave() && Keep(events_.EndArray()); }
  bool key(std::string& v) { return Keep(events_.Key(v)); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    // After "; last read" the message quotes the input, which may be long and need not be UTF-8.
    std::string_view what = e.what();
    what = what.substr(0, what.find("; last read"));
    if (const size_t at = what.find(": "); at != what.npos) what.remove_prefix(at + 2);
    if (what.size() > 200 || !IsUtf8(what)) what = "syntax error";
    return Keep(
        Errorf(StatusCode::kInvalidArgument, "malformed JSON at byte {}: {}", position, what));
  }

  const Status& status() const { return status_; }

 private:
  bool Keep(Status s) {
    status_ = std::move(s);
    return status_.ok();
  }
  bool Enter() {
    if (++depth_ <= kMaxDepth) return true;
    return Keep(Errorf(StatusCode::kInvalidArgument, "JSON is nested deeper than {}", kMaxDepth));
  }
  bool Leave() {
    --depth_;
    return true;
  }

  JsonEvents& events_;
  unsigned depth_ = 0;
  Status status_;
};

}  // namespace

Status ReadJson(std::string_view text, JsonEvents& events) {
  // The parser would treat a raw NUL as the end and ignore the bytes after it.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return Errorf(StatusCode::kInvalidArgument, "malformed JSON at byte {}: NUL byte", nul + 1);
  }
  Adapter adapter(events);
  const bool ok = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
  if (!ok && adapter.status().ok()) {
    return Errorf(StatusCode::kInvalidArgument, "malformed JSON");
  }
  return adapter.status();
}

}  // namespace deltawire
