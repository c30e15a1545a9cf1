#include "python/control_core.h"

#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "python/checked.h"

namespace py = pybind11;

namespace deltawire {
namespace {

// The pause between two checks for a Ctrl-C, which Python handles only under the GIL.
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

  /// Returns the next answer's JSON, or None when the call has ended with success.
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
    dw_control* opened = nullptr;
    Run([&] { return dw_control_open(&o, &opened); });
    control_.reset(opened, [](dw_control* control) { dw_control_close(control); });
  }
  ~Control() {
    const GilReleased released;
    control_.reset();
  }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// The library connects within the call, and no signal interrupts that, so a thread makes the
  /// call. After a Ctrl-C that thread ends by itself and discards its result.
  std::unique_ptr<Call> Start(const std::string& method, const std::string& request,
                              uint32_t timeout_ms) {
    struct Started {
      std::mutex mu;
      std::condition_variable cv;
      bool done = false, dropped = false;
      int code = DW_OK;
      std::string error;
      dw_control_call* call = nullptr;
    };
    auto started = std::make_shared<Started>();
    std::thread([started, control = control_, method, request, timeout_ms] {
      dw_control_call* call = nullptr;
      const int code =
          dw_control_start(control.get(), method.c_str(), request.c_str(), timeout_ms, &call);
      std::string error = code == DW_OK ? "" : dw_last_error();
      std::unique_lock lock(started->mu);
      if (started->dropped) {
        lock.unlock();
        dw_control_call_destroy(call);
        return;
      }
      started->done = true;
      started->code = code;
      started->error = std::move(error);
      started->call = call;
      started->cv.notify_all();
    }).detach();
    while (true) {
      {
        const GilReleased released;
        std::unique_lock lock(started->mu);
        started->cv.wait_for(lock, std::chrono::milliseconds(kLookForSignalsMs),
                             [&] { return started->done; });
        if (started->done) break;
      }
      if (PyErr_CheckSignals() == 0) continue;
      std::unique_lock lock(started->mu);
      started->dropped = true;
      dw_control_call* const late = started->call;
      lock.unlock();
      const GilReleased released;
      dw_control_call_destroy(late);
      break;
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    Check(started->code, started->error);
    return std::make_unique<Call>(started->call);
  }

 private:
  std::shared_ptr<dw_control> control_;
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
