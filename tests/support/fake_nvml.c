/* A libnvidia-ml.so.1 for tests. Two GPUs unless FAKE_NVML_COUNT says more.
 *
 *   FAKE_NVML_INIT=9                  nvmlInit returns this code
 *   FAKE_NVML_FAIL=FUNCTION:GPU:CODE  a function of one GPU returns this code (GPU * is any)
 *   FAKE_NVML_HANG=FUNCTION:GPU       … sleeps until it is killed
 *   FAKE_NVML_CRASH=FUNCTION:GPU      … aborts
 *
 * FUNCTION is the exported name. What is not exported here is what an old driver does not have.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef int ret;

static int matches(const char *rule, const char *function, int gpu, int *code)
{
    char name[128] = "", which[16] = "";
    if (!rule || sscanf(rule, "%127[^:]:%15[^:]:%d", name, which, code) < 2)
        return 0;
    return !strcmp(name, function) && (!strcmp(which, "*") || atoi(which) == gpu);
}

static ret begin(const char *function, int gpu)
{
    int code = 0;
    if (matches(getenv("FAKE_NVML_HANG"), function, gpu, &code))
        for (;;)
            sleep(1000);
    if (matches(getenv("FAKE_NVML_CRASH"), function, gpu, &code))
        abort();
    return matches(getenv("FAKE_NVML_FAIL"), function, gpu, &code) ? code : 0;
}

static int index_of(handle h) { return (int)(intptr_t)h - 1; }

#define SYSTEM(call) do { ret r = begin(__func__, -1); if (r) return r; call; return 0; } while (0)
#define DEVICE(call) do { ret r = begin(__func__, index_of(h)); if (r) return r; call; return 0; } while (0)
#define NUMBER(name, number) ret name(handle h, unsigned *out) { DEVICE(*out = (number)); }
#define TEXT(name, format) \
    ret name(handle h, char *out, unsigned size) { DEVICE(snprintf(out, size, format, index_of(h))); }

static unsigned count(void)
{
    const char *n = getenv("FAKE_NVML_COUNT");
    return n ? (unsigned)atoi(n) : 2;
}

ret nvmlInitWithFlags(unsigned flags)
{
    const char *code = getenv("FAKE_NVML_INIT");
    (void)flags;
    if (code)
        return atoi(code);
    return begin(__func__, -1);
}
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret code) { (void)code; return "an error"; }
ret nvmlSystemGetDriverVersion(char *out, unsigned size) { SYSTEM(snprintf(out, size, "535.183.06")); }
ret nvmlSystemGetNVMLVersion(char *out, unsigned size) { SYSTEM(snprintf(out, size, "12.535.183.06")); }
ret nvmlSystemGetCudaDriverVersion(int *out) { SYSTEM(*out = 12020); }
ret nvmlDeviceGetCount_v2(unsigned *out) { SYSTEM(*out = count()); }
ret nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out)
{
    ret r = begin(__func__, (int)index);
    if (r)
        return r;
    *out = (handle)(intptr_t)(index + 1);
    return 0;
}

TEXT(nvmlDeviceGetName, "NVIDIA Fake %d")
TEXT(nvmlDeviceGetUUID, "GPU-00000000-0000-0000-0000-00000000000%d")
ret nvmlDeviceGetVbiosVersion(handle h, char *out, unsigned size)
{
    DEVICE((void)size; memcpy(out, "96\xff.01", 7));
}
NUMBER(nvmlDeviceGetMinorNumber, (unsigned)index_of(h))
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetPowerUsage, 70000)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
ret nvmlDeviceGetCudaComputeCapability(handle h, int *major, int *minor) { DEVICE(*major = 9; *minor = 0); }
ret nvmlDeviceGetMigMode(handle h, unsigned *now, unsigned *next) { DEVICE(*now = 0; *next = 0); }

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
ret nvmlDeviceGetMemoryInfo(handle h, struct memory *out)
{
    DEVICE(out->total = 1000; out->free = 700; out->used = 300);
}
ret nvmlDeviceGetMemoryInfo_v2(handle h, struct memory_v2 *out)
{
    DEVICE(out->total = 1000; out->reserved = 200; out->free = 700; out->used = 100);
}

ret nvmlDeviceGetRemappedRows(handle h, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failure)
{
    DEVICE(*cor = 1; *unc = 2; *pending = 1; *failure = 0);
}
ret nvmlDeviceGetTemperatureThreshold(handle h, int which, unsigned *out)
{
    ret r = begin(__func__, index_of(h));
    if (r || which > 1)
        return r ? r : 3;
    *out = 90u - (unsigned)which;
    return 0;
}
ret nvmlDeviceGetTotalEccErrors(handle h, int kind, int counter, unsigned long long *out)
{
    DEVICE(*out = (unsigned long long)(10 * kind + counter));
}

struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
ret nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *size, struct process *out)
{
    ret r = begin(__func__, index_of(h));
    if (r)
        return r;
    if (*size < 2) {
        *size = 2;
        return 7;
    }
    *size = 2;
    out[0] = (struct process){41823, 5000, 0xffffffffu, 0xffffffffu};
    out[1] = (struct process){41824, ~0ull, 0xffffffffu, 0xffffffffu};
    return 0;
}

ret nvmlDeviceGetNvLinkState(handle h, unsigned link, unsigned *out)
{
    ret r = begin(__func__, index_of(h));
    if (r || link > 3)
        return r ? r : 2;
    *out = link != 2;
    return 0;
}
ret nvmlDeviceGetNvLinkErrorCounter(handle h, unsigned link, int counter, unsigned long long *out)
{
    DEVICE(*out = 100ull * link + (unsigned)counter);
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    ret result;
    union { double d; unsigned u; unsigned long long ull; } value;
};
ret nvmlDeviceGetFieldValues(handle h, int n, struct field *fields)
{
    ret r = begin(__func__, index_of(h));
    if (r)
        return r;
    for (int i = 0; i < n; i++) {
        fields[i].result = 3;
        if (fields[i].id == 90 || fields[i].id == 91) {
            fields[i].result = 0;
            fields[i].type = 1;
            fields[i].value.u = fields[i].id == 90 ? 26562 : 4;
        } else if (fields[i].id == 230) {
            fields[i].result = 0;
            fields[i].type = 3;
            fields[i].value.ull = 1;
        }
    }
    return 0;
}

struct fabric_v2 {
    unsigned version;
    unsigned char cluster[16];
    ret status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};
ret nvmlDeviceGetGpuFabricInfoV(handle h, struct fabric_v2 *out)
{
    ret r = begin(__func__, index_of(h));
    if (r)
        return r;
    if (out->version >> 24 != 2)
        return 25;
    for (int i = 0; i < 16; i++)
        out->cluster[i] = (unsigned char)(16 * i);
    out->status = 0;
    out->clique = 7;
    out->state = 3;
    out->health = 1;
    return 0;
}

ret nvmlDeviceGetP2PStatus(handle h, handle peer, int index, int *out)
{
    DEVICE(*out = index_of(peer) == 1 && index == 2 ? 5 : 0);
}
ret nvmlDeviceGetTopologyCommonAncestor(handle h, handle peer, int *out) { DEVICE((void)peer; *out = 40); }
