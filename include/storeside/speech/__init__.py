"""The parts that only the speech pipeline needs: its manifest, and the settling of its runs with their queue."""
