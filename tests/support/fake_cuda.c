/* A stand-in for the driver's libcuda.so.1 with the ABI of cuda.h. FAKE_CUDA_INIT: what cuInit returns, or "hang" or "crash".
   FAKE_CUDA_NOISE: it writes to standard output, and leaves a process behind. FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES: its answers.
   FAKE_CUDA_CALLS: a file that gets a byte for each cuInit. As the real one, it has no device where CUDA_VISIBLE_DEVICES names
   none. */
char *getenv(const char *name);
int atoi(const char *text);
int sleep(unsigned seconds);
int fork(void);
void _exit(int status);
int raise(int signal);
int open(const char *path, int flags, ...);
long write(int file, const void *bytes, unsigned long count);
int close(int file);
int snprintf(char *text, unsigned long size, const char *format, ...);

static int number(const char *name, int otherwise) { const char *set = getenv(name); return set ? atoi(set) : otherwise; }

int cuInit(unsigned flags)
{
    const char *result = getenv("FAKE_CUDA_INIT"), *visible = getenv("CUDA_VISIBLE_DEVICES"), *calls = getenv("FAKE_CUDA_CALLS");
    int file = calls ? open(calls, 02001) : -1; /* O_WRONLY | O_APPEND */
    (void)flags;
    if (file >= 0) { write(file, "x", 1); close(file); }
    if (getenv("FAKE_CUDA_NOISE")) { write(1, "NVRM: a line\n", 13); if (fork() == 0) { sleep(4); _exit(0); } }
    if (visible && (!visible[0] || visible[0] == 'N' || visible[0] == '-')) return 100;
    if (result && result[0] == 'h') sleep(600);
    if (result && result[0] == 'c') raise(11);
    return result ? atoi(result) : 0;
}
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA_VERSION", 12040); return 0; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_CUDA_DEVICES", 2); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { snprintf(text, size, "0000:%02X:00.0", 0x4E + device); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = device; return 0; }
