/*
 * Facts of a decoded recording before it is mixed and resampled: silence, clipping, bandwidth, signal-to-noise ratio.
 * docs/audio.md defines them; audio/signal.py computes the same facts with numpy.
 */
#ifndef STORESIDE_SIGNAL_H
#define STORESIDE_SIGNAL_H

#include <libavcodec/codec_id.h>
#include <libavutil/frame.h>

/* Shares are 0 to 1; NaN stands for a fact that cannot be estimated. converter.py mirrors this. */
typedef struct {
    double silence_share, clipped_share, bandwidth_hz, snr_db;
} SignalFacts;

typedef struct Signal Signal;

/* Return a meter that is reused for many recordings; NULL if memory is exhausted. */
Signal *signal_open(void);
void signal_close(Signal *signal);

/* Start a recording with the form of its first frame. Returns 0 if memory is exhausted. */
int signal_start(Signal *signal, const AVFrame *first, enum AVCodecID codec);
void signal_add(Signal *signal, const AVFrame *frame);
void signal_finish(Signal *signal, SignalFacts *facts);

#endif
