/* Facts of a decoded recording; see signal.h. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/mem.h>
#include <libavutil/samplefmt.h>
#include <libavutil/tx.h>

#include "signal.h"

/* audio/signal.py mirrors these definitions. */
enum {
    FRAMES_PER_SECOND = 50,
    CLIPPED_RUN = 3,
    FEWEST_FRAMES = 25,      /* for the signal-to-noise ratio: half a second */
    NOISE_PERCENT = 15,
    SPEECH_PERCENT = 95,
    LOWEST_LEVEL = -100,     /* dBFS */
    STEPS = 10,              /* of levels, per dB */
    LEVELS = -LOWEST_LEVEL * STEPS + 1,
    FEWEST_BINS = 32,        /* a spectrum's bins are narrower than this, in Hz */
    PERIOD = 4,              /* lengths of a spectrum from the start of one to the start of the next */
    LOWEST_BIN = 2,          /* a constant offset reaches bins 0 and 1 */
};
#define SILENCE 1e-5         /* mean square: -50 dBFS */
#define BAND_THRESHOLD 1e-5  /* of the strongest bin: -50 dB */
#define BAND_FLOOR 1e-13     /* of a tone at full scale: the FFT's own noise is lower */

enum { PIECE = 512, LANES = 4 };

struct Signal {
    int rate, channels, format;
    float limit; /* from this magnitude on, a sample is clipped */
    int *runs;   /* of clipped samples at the end, per channel; at most CLIPPED_RUN */
    int64_t values, clipped;

    int frame_size, frame_at;
    double square_sum;
    int64_t frames, silent;
    int64_t histogram[LEVELS];

    int size, size_of_transform, at; /* of a spectrum in samples, and the position in the period */
    float *window, *heard, *in, *out;
    double *power;
    int64_t spectra;
    AVTXContext *context;
    av_tx_fn transform;
};

Signal *signal_open(void)
{
    return calloc(1, sizeof(Signal));
}

static void drop_transform(Signal *signal)
{
    av_tx_uninit(&signal->context);
    av_freep(&signal->window);
    av_freep(&signal->in);
    av_freep(&signal->out);
    av_freep(&signal->power);
    signal->size_of_transform = 0;
}

void signal_close(Signal *signal)
{
    if (!signal)
        return;
    drop_transform(signal);
    av_free(signal->heard);
    av_free(signal->runs);
    free(signal);
}

static float limit_of(int format, enum AVCodecID codec)
{
    if (codec == AV_CODEC_ID_PCM_MULAW)
        return 32124 / 32768.f; /* the largest values of ITU-T G.711, as 16-bit samples */
    if (codec == AV_CODEC_ID_PCM_ALAW)
        return 32256 / 32768.f;
    return av_get_packed_sample_fmt(format) == AV_SAMPLE_FMT_U8 ? 126 / 128.f : 32766 / 32768.f;
}

static int prepare_transform(Signal *signal, int size)
{
    const float scale = 1;
    if (signal->size_of_transform == size)
        return 1;
    drop_transform(signal);
    signal->window = av_malloc_array(size, sizeof(float));
    signal->in = av_malloc_array(size, sizeof(float));
    signal->out = av_malloc_array(size + 2, sizeof(float));
    signal->power = av_malloc_array(size / 2 + 1, sizeof(double));
    if (!signal->window || !signal->in || !signal->out || !signal->power ||
        av_tx_init(&signal->context, &signal->transform, AV_TX_FLOAT_RDFT, 0, size, &scale, 0) < 0)
        return 0;
    for (int i = 0; i < size; i++)
        signal->window[i] = .5 - .5 * cos(2 * M_PI * i / size);
    signal->size_of_transform = size;
    return 1;
}

int signal_start(Signal *signal, const AVFrame *first, enum AVCodecID codec)
{
    int channels = first->ch_layout.nb_channels;
    signal->rate = first->sample_rate;
    signal->format = first->format;
    signal->limit = limit_of(first->format, codec);
    signal->values = signal->clipped = signal->frames = signal->silent = signal->spectra = 0;
    signal->frame_size = signal->rate / FRAMES_PER_SECOND;
    signal->frame_at = signal->at = 0;
    signal->square_sum = 0;
    memset(signal->histogram, 0, sizeof signal->histogram);
    signal->size = 1;
    while (signal->size * FEWEST_BINS < signal->rate)
        signal->size *= 2;
    if (signal->channels != channels || signal->size_of_transform != signal->size) {
        av_freep(&signal->heard);
        av_freep(&signal->runs);
        signal->channels = 0;
        signal->heard = av_malloc_array((size_t)channels * signal->size, sizeof(float));
        signal->runs = av_malloc_array(channels, sizeof(int));
    }
    if (!prepare_transform(signal, signal->size) || !signal->heard || !signal->runs)
        return 0;
    signal->channels = channels;
    memset(signal->runs, 0, channels * sizeof(int));
    memset(signal->power, 0, (signal->size / 2 + 1) * sizeof(double));
    return 1;
}

static float bounded(float value)
{
    value = value == value ? value : 0;
    value = value > -1 ? value : -1;
    return value < 1 ? value : 1;
}

/* Read `count` values, `step` apart from each other, from value `first` on; full scale becomes 1. */
static void load(int format, const uint8_t *data, int64_t first, int step, int count, float *into)
{
#define LOAD_EACH(type, expression, step) \
    for (int i = 0; i < count; i++) { \
        type value = ((const type *)data)[first + (int64_t)i * (step)]; \
        into[i] = expression; \
    }
#define LOAD(type, expression) \
    if (step == 1) /* the compiler vectorizes this loop */ \
        LOAD_EACH(type, expression, 1) \
    else \
        LOAD_EACH(type, expression, step) \
    break
    switch (av_get_packed_sample_fmt(format)) {
    case AV_SAMPLE_FMT_U8: LOAD(uint8_t, (value - 128) / 128.f);
    case AV_SAMPLE_FMT_S16: LOAD(int16_t, value / 32768.f);
    case AV_SAMPLE_FMT_S32: LOAD(int32_t, value * 0x1p-31f);
    case AV_SAMPLE_FMT_S64: LOAD(int64_t, value * 0x1p-63f);
    case AV_SAMPLE_FMT_FLT: LOAD(float, bounded(value));
    case AV_SAMPLE_FMT_DBL: LOAD(double, bounded((float)value));
    default: memset(into, 0, count * sizeof *into);
    }
}

/* Add the squares of contiguous values, and return whether one is clipped. */
static int add_integers(Signal *signal, const int16_t *values, int count)
{
    int64_t sum = 0;
    int16_t low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i] * values[i];
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    signal->square_sum += sum * 0x1p-30;
    int limit = signal->limit * 32768;
    return high >= limit || -low >= limit;
}

typedef float Lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));
typedef int32_t Flags __attribute__((vector_size(LANES * sizeof(int32_t))));

/*
 * Store the sum of squares, and whether a magnitude reaches `limit`. Return whether a value is NaN or above full scale.
 */
static int measure(const float *values, int count, float limit, double *sum, int *clipped)
{
    Lanes sums = {0};
    Flags high = {0}, over = {0};
    float rest[LANES] = {0};
    for (int i = 0; i < count; i += LANES) {
        const float *from = values + i;
        if (count - i < LANES)
            from = memcpy(rest, from, (count - i) * sizeof(float));
        Lanes value = *(const Lanes *)from, square = value * value;
        sums += square;
        high |= square >= limit * limit;
        over |= ~(square <= 1);
    }
    int above = 0;
    *sum = *clipped = 0;
    for (int j = 0; j < LANES; j++) {
        *sum += sums[j];
        *clipped |= high[j];
        above |= over[j];
    }
    return above;
}

static int add_contiguous(Signal *signal, const uint8_t *data, int64_t first, int64_t count)
{
    int kind = av_get_packed_sample_fmt(signal->format), clipped = 0, one;
    float loaded[PIECE];
    double sum;
    if (kind == AV_SAMPLE_FMT_S16)
        return add_integers(signal, (const int16_t *)data + first, count);
    for (int64_t done = 0; done < count; done += PIECE) {
        int part = count - done < PIECE ? count - done : PIECE;
        if (kind != AV_SAMPLE_FMT_FLT ||
            measure((const float *)data + first + done, part, signal->limit, &sum, &one)) {
            load(kind, data, first + done, 1, part, loaded);
            measure(loaded, part, signal->limit, &sum, &one);
        }
        signal->square_sum += sum;
        clipped |= one;
    }
    return clipped;
}

static void count_runs(Signal *signal, const AVFrame *frame, int first, int count)
{
    int planar = av_sample_fmt_is_planar(signal->format), step = planar ? 1 : signal->channels;
    float piece[PIECE];
    for (int c = 0; c < signal->channels; c++)
        for (int done = 0; done < count; done += PIECE) {
            int part = count - done < PIECE ? count - done : PIECE;
            int64_t from = (int64_t)(first + done) * step + (planar ? 0 : c);
            load(signal->format, frame->extended_data[planar ? c : 0], from, step, part, piece);
            for (int i = 0; i < part; i++) {
                int run = fabsf(piece[i]) >= signal->limit ? signal->runs[c] + 1 : 0;
                signal->clipped += run == CLIPPED_RUN ? CLIPPED_RUN : run > CLIPPED_RUN;
                signal->runs[c] = run > CLIPPED_RUN ? CLIPPED_RUN : run; /* longer runs need no exact length */
            }
        }
}

static void end_frame(Signal *signal)
{
    double power = signal->square_sum / ((double)signal->frame_at * signal->channels);
    double level = power > 0 ? 10 * log10(power) : LOWEST_LEVEL;
    long step = lrint((level - LOWEST_LEVEL) * STEPS);
    signal->histogram[step < 0 ? 0 : step < LEVELS ? step : LEVELS - 1]++;
    signal->frames++;
    signal->silent += power < SILENCE;
    signal->square_sum = signal->frame_at = 0;
}

static void add_levels(Signal *signal, const AVFrame *frame)
{
    int planar = av_sample_fmt_is_planar(signal->format), channels = signal->channels;
    for (int done = 0, part; done < frame->nb_samples; done += part) {
        int room = signal->frame_size - signal->frame_at, left = frame->nb_samples - done;
        int clipped = 0;
        part = left < room ? left : room;
        if (planar)
            for (int c = 0; c < channels; c++)
                clipped |= add_contiguous(signal, frame->extended_data[c], done, part);
        else
            clipped = add_contiguous(signal, frame->extended_data[0], (int64_t)done * channels, (int64_t)part * channels);
        if (clipped)
            count_runs(signal, frame, done, part);
        else
            memset(signal->runs, 0, channels * sizeof(int));
        signal->frame_at += part;
        if (signal->frame_at == signal->frame_size)
            end_frame(signal);
    }
    signal->values += (int64_t)frame->nb_samples * channels;
}

static void add_spectrum(Signal *signal)
{
    for (int c = 0; c < signal->channels; c++) {
        const float *heard = signal->heard + (size_t)c * signal->size;
        for (int i = 0; i < signal->size; i++)
            signal->in[i] = heard[i] * signal->window[i];
        signal->transform(signal->context, signal->out, signal->in, sizeof(float));
        signal->out[signal->size + 1] = 0; /* FFmpeg 5.1 leaves the imaginary part of the last bin unwritten */
        for (int k = LOWEST_BIN; k <= signal->size / 2; k++) {
            float re = signal->out[2 * k], im = signal->out[2 * k + 1];
            signal->power[k] += re * re + im * im;
        }
    }
    signal->spectra++;
}

static void add_spectra(Signal *signal, const AVFrame *frame)
{
    int planar = av_sample_fmt_is_planar(signal->format), step = planar ? 1 : signal->channels;
    for (int done = 0, part; done < frame->nb_samples; done += part) {
        int end = signal->at < signal->size ? signal->size : PERIOD * signal->size;
        int left = frame->nb_samples - done;
        part = left < end - signal->at ? left : end - signal->at;
        if (signal->at < signal->size)
            for (int c = 0; c < signal->channels; c++)
                load(signal->format, frame->extended_data[planar ? c : 0], (int64_t)done * step + (planar ? 0 : c), step,
                     part, signal->heard + (size_t)c * signal->size + signal->at);
        signal->at += part;
        if (signal->at == signal->size)
            add_spectrum(signal);
        if (signal->at == PERIOD * signal->size)
            signal->at = 0;
    }
}

void signal_add(Signal *signal, const AVFrame *frame)
{
    add_levels(signal, frame);
    add_spectra(signal, frame);
}

/* Return the lowest level, in steps above LOWEST_LEVEL, that `percent` of the frames do not exceed. */
static int level_of(const Signal *signal, int percent)
{
    int64_t frames = 0;
    int step = 0;
    while ((frames += signal->histogram[step]) * 100 < signal->frames * percent)
        step++;
    return step;
}

static double bandwidth_of(const Signal *signal)
{
    double peak = 0;
    int highest = signal->size / 2;
    for (int k = LOWEST_BIN; k <= signal->size / 2; k++)
        peak = signal->power[k] > peak ? signal->power[k] : peak;
    double tone = (double)signal->size * signal->size / 16 * signal->spectra * signal->channels;
    if (!signal->spectra || peak < BAND_FLOOR * tone)
        return NAN;
    while (signal->power[highest] < BAND_THRESHOLD * peak)
        highest--;
    return (double)highest * signal->rate / signal->size;
}

void signal_finish(Signal *signal, SignalFacts *facts)
{
    if (signal->frame_at)
        end_frame(signal);
    int speech = level_of(signal, SPEECH_PERCENT), noise = level_of(signal, NOISE_PERCENT);
    facts->silence_share = (double)signal->silent / signal->frames;
    facts->clipped_share = (double)signal->clipped / signal->values;
    facts->bandwidth_hz = bandwidth_of(signal);
    facts->snr_db = signal->frames >= FEWEST_FRAMES && speech ? (double)(speech - noise) / STEPS : NAN;
}
