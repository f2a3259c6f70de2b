"""Programs that use Outrider as another team would; each folder has a README."""
