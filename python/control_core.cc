#include "python/control_core.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "python/checked.h"

namespace py = pybind11;

namespace deltawire {
namespace {

// How soon a wait sees a Ctrl-C, which Python handles where the GIL is held.
constexpr uint32_t kLookForSignalsMs = 100;

class Call {
 public:
  explicit Call(dw_control_call* call) : call_(call) {}
  ~Call() {
    const GilReleased released;
    dw_control_call_destroy(call_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// The next answer's JSON, or None at the call's good end.
  std::optional<std::string> Next() {
    const char* answer = "";
    while (true) {
      Run([&] { return dw_control_next(call_, kLookForSignalsMs, &answer); });
      if (answer == nullptr) return std::nullopt;
      if (*answer != '\0') return answer;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
  void Cancel() { dw_control_cancel(call_); }

 private:
  dw_control_call* const call_;
};

class Control {
 public:
  Control(int32_t daemon, const std::string& address, const std::optional<std::string>& credentials,
          uint32_t timeout_ms) {
    dw_control_options o{};
    o.struct_size = sizeof o;
    o.daemon = daemon;
    o.address = address.c_str();
    o.credentials = credentials ? credentials->c_str() : nullptr;
    o.timeout_ms = timeout_ms;
    Run([&] { return dw_control_open(&o, &control_); });
  }
  ~Control() {
    const GilReleased released;
    dw_control_close(control_);
  }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  std::unique_ptr<Call> Start(const std::string& method, const std::string& request,
                              uint32_t timeout_ms) {
    dw_control_call* call = nullptr;
    Run([&] {
      return dw_control_start(control_, method.c_str(), request.c_str(), timeout_ms, &call);
    });
    return std::make_unique<Call>(call);
  }

 private:
  dw_control* control_ = nullptr;
};

}  // namespace

void BindControl(py::module_& m) {
  m.attr("DAEMON_SENDER") = static_cast<int>(DW_DAEMON_SENDER);
  m.attr("DAEMON_RECEIVER") = static_cast<int>(DW_DAEMON_RECEIVER);
  py::class_<Call>(m, "ControlCall").def("next", &Call::Next).def("cancel", &Call::Cancel);
  py::class_<Control>(m, "Control")
      .def(py::init<int32_t, const std::string&, const std::optional<std::string>&, uint32_t>())
      .def("start", &Control::Start);
}

}  // namespace deltawire
