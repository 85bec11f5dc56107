"""What the speech pipeline alone needs: its manifest, and the end of its runs as their queue sees it."""
